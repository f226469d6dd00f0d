//! `tasks work`: what the command gets, and what its end means for the task.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::shop::is_alive;
use crate::support::{Bench, eventually};

#[test]
fn payload_and_environment_arrive_and_the_output_is_the_result() {
    let bench = Bench::new();
    let id = bench.add(&["mail", "--payload", r#"{"to":"ada"}"#, "--key", "k"]);
    let ran = bench.work(
        "mail",
        r#"cat > $BENCH/payload; env | grep ^LEASEHOLD_ | grep -v PROGRESS | sort > $BENCH/env; echo '{"sent": 1.10}'"#,
    );
    assert_eq!(ran.stdout, "{\"sent\": 1.10}\n", "it is passed on");
    let task = bench.task(&id);
    assert_eq!((&task["state"], &task["result"]), (&"succeeded".into(), &json!({"sent": 1.10})));
    assert_eq!(std::fs::read_to_string(bench.path().join("payload")).unwrap(), r#"{"to":"ada"}"#);
    let env = std::fs::read_to_string(bench.path().join("env")).unwrap();
    let store = bench.path().join("store.db");
    let expected = format!(
        "LEASEHOLD_ATTEMPT=1\nLEASEHOLD_KEY=k\nLEASEHOLD_QUEUE=mail\nLEASEHOLD_STORE=sqlite:{}\n\
         LEASEHOLD_TASK={id}\nLEASEHOLD_TOKEN={}\n",
        store.display(),
        task["token"]
    );
    assert_eq!(env, expected);
}

#[test]
fn what_is_no_json_is_kept_as_a_text_and_nothing_as_nothing() {
    let bench = Bench::new();
    let id = bench.add(&["a"]);
    bench.work("a", "echo it is done");
    assert_eq!(bench.task(&id)["result"], "it is done");
    let id = bench.add(&["a"]);
    bench.work("a", "true");
    assert_eq!(bench.task(&id).get("result"), None);
    let id = bench.add(&["a"]);
    let ran = bench.work("a", "yes 0123456789 | head -c 3000000");
    assert_eq!(ran.stdout.len(), 3_000_000, "all of it is passed on");
    let kept = bench.task(&id)["result"].as_str().unwrap().to_owned();
    assert!(kept.len() < 70_000 && kept.ends_with('…'), "{}", kept.len());
}

#[test]
fn a_payload_never_becomes_code() {
    let bench = Bench::new();
    let nasty = r#""$(touch pwned) `touch pwned` ; touch pwned""#;
    let id = bench.add(&["a", "--payload", nasty, "--key", "$(touch pwned)", "--lock", "; touch pwned"]);
    bench.work("a", r#"cat; echo "$LEASEHOLD_KEY $LEASEHOLD_LOCK" >&2"#);
    assert_eq!(bench.task(&id)["state"], "succeeded");
    assert!(!bench.path().join("pwned").exists());
}

#[test]
fn a_large_payload_need_not_be_read() {
    let bench = Bench::new();
    let text = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    std::fs::write(bench.path().join("large"), &text).unwrap();
    let id = bench.add(&["a", "--payload", "@large"]);
    bench.add(&["a", "--payload", "@large"]);
    let ran = bench.work("a", "[ $LEASEHOLD_ATTEMPT = 1 ] && [ -e $BENCH/once ] && wc -c; touch $BENCH/once");
    assert!(ran.stdout.contains("1048576"), "{ran:?}");
    assert_eq!(bench.task(&id)["state"], "succeeded");
}

#[test]
fn a_failed_attempt_is_followed_by_another_and_all_are_told() {
    let bench = Bench::new();
    let id = bench.add(&["a", "--backoff", "1ms"]);
    let worker =
        bench.start_worker("a", "echo try $LEASEHOLD_ATTEMPT >&2; [ $LEASEHOLD_ATTEMPT = 3 ] || exit 9");
    let task = bench.until_task(&id, "succeeded");
    drop(worker);
    assert_eq!(task["attempt"], 3);
    let events = task["events"].as_array().unwrap();
    let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["failed", "failed"]);
    assert_eq!(events[1]["why"], "the command failed with exit code 9\ntry 2");
}

#[test]
fn the_exit_code_decides() {
    let bench = Bench::new();
    for (script, state, error) in [
        ("exit 65", "failed", "the command gave up with exit code 65"),
        ("exit 78", "failed", "the command gave up with exit code 78"),
        ("exit 1", "scheduled", "the command failed with exit code 1"),
        ("kill -9 $$", "scheduled", "the command was ended by signal 9"),
    ] {
        let id = bench.add(&["a", "--backoff", "1h"]);
        let ran = bench.work("a", script);
        let task = bench.task(&id);
        assert_eq!((task["state"].as_str(), task["error"].as_str()), (Some(state), Some(error)), "{script}");
        assert!(ran.stderr.contains(error), "{script}: {}", ran.stderr);
        assert_eq!(task["attempt"], 1);
    }
    let last = bench.add(&["a", "--max-attempts", "1"]);
    bench.work("a", "exit 1");
    assert_eq!(bench.task(&last)["state"], "failed");
    let later = bench.add(&["a", "--backoff", "1h"]);
    bench.work("a", "exit 75");
    let task = bench.task(&later);
    assert_eq!((&task["state"], &task["attempt"]), (&"scheduled".into(), &0.into()), "75 is no attempt");
}

#[test]
fn once_is_one_task() {
    let bench = Bench::new();
    bench.add(&["a"]);
    bench.add(&["a"]);
    let ran = crate::support::run(&mut bench.worker("a --once", "echo ran"));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
    assert_eq!(bench.json("tasks counts a")[0]["counts"]["pending"], 1);
}

#[test]
fn several_run_at_once_and_their_lines_do_not_mix() {
    let bench = Bench::new();
    for _ in 0..4 {
        bench.add(&["a"]);
    }
    // Each waits until all four are there.
    let script = r"touch $BENCH/in.$LEASEHOLD_TASK; while [ $(ls $BENCH/in.* | wc -l) -lt 4 ]; do sleep 0.01; done
        for i in 1 2 3 4 5; do printf aaaaa; printf 'bbbbb\n'; done";
    let ran = bench.work("a --slots 4", script);
    assert_eq!(ran.stdout, "aaaaabbbbb\n".repeat(20));
}

#[test]
fn a_task_with_a_lock_holds_it_and_knows_it() {
    let bench = Bench::new();
    let id = bench.add(&["a", "--lock", "disk"]);
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        r#"echo "$LEASEHOLD_LOCK"; {binary} fence check disk --token $LEASEHOLD_LOCK_TOKEN >&2 && echo held; \
           {binary} run disk -- true || echo refused"#
    );
    let ran = bench.work("a", &script);
    assert_eq!(ran.stdout, "disk\nheld\nrefused\n", "{ran:?}");
    assert!(ran.stderr.contains("held by the leasehold run around this one"), "{ran:?}");
    assert_eq!(bench.task(&id)["state"], "succeeded");
    assert_eq!(bench.json("locks status disk")["isLocked"], false);
}

#[test]
fn a_task_whose_lock_is_taken_waits_for_it() {
    let bench = Bench::new();
    let held = bench.hold("disk --ttl 1h");
    let id = bench.add(&["a", "--lock", "disk"]);
    let other = bench.add(&["a"]);
    let _worker = bench.start_worker("a", "true");
    bench.until_task(&other, "succeeded");
    assert_ne!(bench.task(&id)["state"], "succeeded");
    bench.ok(&format!("locks release disk {}", held.with));
    assert_eq!(bench.until_task(&id, "succeeded")["attempt"], 1);
}

#[test]
fn what_a_command_leaves_behind_is_ended_before_its_task_is_settled() {
    let bench = Bench::new();
    bench.add(&["a"]);
    bench.work(
        "a --kill-after 200ms",
        "setsid sh -c 'trap \"\" TERM; echo $$ > $BENCH/daemon; while :; do sleep 0.1; done' & \
        while ! [ -s $BENCH/daemon ]; do sleep 0.01; done",
    );
    assert!(!is_alive(&bench.written("daemon")));
}

#[test]
fn cancel_ends_the_command() {
    let bench = Bench::new();
    let id = bench.add(&["a"]);
    let _worker = bench.start_worker(
        "a --ttl 3s --kill-after 300ms",
        "trap '' TERM; echo $$ > $BENCH/pid; while :; do sleep 0.1; done",
    );
    let pid = bench.written("pid");
    let ran = bench.run(&format!("tasks cancel {id} --reason enough"));
    assert_eq!(ran.stdout, format!("{id}  stopping\n"));
    let task = bench.until_task(&id, "aborted");
    assert!(!is_alive(&pid), "the task was settled while its command lived");
    assert_eq!(task["cancel"]["reason"], "enough");
}

#[test]
fn asked_to_end_a_worker_finishes_what_runs_and_takes_no_more() {
    let bench = Bench::new();
    let id = bench.add(&["a"]);
    let next = bench.add(&["a"]);
    let script = "echo 1 > $BENCH/began; while ! [ -e $BENCH/go ]; do sleep 0.01; done; echo finished";
    let mut worker = bench.start_worker("a", script);
    bench.written("began");
    worker.signal(Signal::SIGTERM);
    eventually("draining", || bench.json("workers")[0]["state"] == "draining");
    std::fs::write(bench.path().join("go"), "").unwrap();
    assert_eq!(worker.wait(), 0);
    assert_eq!(bench.task(&id)["result"], "finished");
    assert_eq!(bench.task(&next)["state"], "pending");
    assert_eq!(bench.json("workers"), json!([]), "it has said good-bye");
}

#[test]
fn after_the_grace_a_command_is_ended_and_its_task_given_back() {
    let bench = Bench::new();
    let id = bench.add(&["a"]);
    let script = "trap '' TERM; echo $$ > $BENCH/pid; while :; do sleep 0.1; done";
    let mut worker = bench.start_worker("a --grace 200ms --kill-after 200ms", script);
    let pid = bench.written("pid");
    worker.signal(Signal::SIGINT);
    assert_eq!(worker.wait(), 0);
    assert!(!is_alive(&pid));
    let task = bench.task(&id);
    assert_eq!((&task["state"], &task["attempt"]), (&"pending".into(), &0.into()), "it counts as no attempt");
    assert_eq!(task["events"][0]["kind"], "returned");
}

#[test]
fn a_second_signal_ends_at_once() {
    let bench = Bench::new();
    let id = bench.add(&["a"]);
    let mut worker = bench
        .start_worker("a --grace 10m", "trap '' TERM; echo $$ > $BENCH/pid; while :; do sleep 0.1; done");
    let pid = bench.written("pid");
    worker.signal(Signal::SIGTERM);
    eventually("draining", || bench.json("workers")[0]["state"] == "draining");
    let before = Instant::now();
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait(), 128 + 15);
    assert!(before.elapsed() < Duration::from_secs(10));
    assert!(!is_alive(&pid));
    let task = bench.task(&id);
    assert!(task["state"] == "pending" || task["state"] == "scheduled", "{task}");
    assert_eq!(task["attempt"], 0);
}

/// Also from a child that has inherited nothing but its environment.
#[test]
fn progress_can_be_seen_while_the_command_runs() {
    let bench = Bench::new();
    let id = bench.add(&["a"]);
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        r#"{binary} tasks progress --done 1 --of 4 --note 'first "pass"' 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- || exit 65
        echo 'nonsense' > $LEASEHOLD_PROGRESS; while ! [ -e $BENCH/go ]; do sleep 0.01; done
        echo '{{"done": 4}}' > $LEASEHOLD_PROGRESS; echo "$LEASEHOLD_PROGRESS" > $BENCH/path"#
    );
    let worker = bench.start_worker("a", &script);
    eventually("progress", || bench.task(&id)["progress"]["note"] == "first \"pass\"");
    assert!(bench.ok("tasks list").contains("25 % first \"pass\""));
    std::fs::write(bench.path().join("go"), "").unwrap();
    bench.until_task(&id, "succeeded");
    drop(worker);
    let mut late = bench.command("tasks progress --done 5".split(' '));
    let late = crate::support::run(late.env("LEASEHOLD_PROGRESS", bench.written("path").trim()));
    assert_eq!(late.code, 79, "{late:?}");
    let nowhere = bench.run("tasks progress --done 5");
    assert_eq!(nowhere.code, 64);
    assert!(nowhere.stderr.contains("there is no LEASEHOLD_PROGRESS here"), "{nowhere:?}");
    let mut file = bench.command("tasks progress --done 5".split(' '));
    std::fs::write(bench.path().join("mine"), "precious").unwrap();
    assert_eq!(crate::support::run(file.env("LEASEHOLD_PROGRESS", bench.path().join("mine"))).code, 64);
    assert_eq!(std::fs::read_to_string(bench.path().join("mine")).unwrap(), "precious");
}

/// Whoever reads slowly holds up the commands, not their leases.
#[test]
fn a_reader_that_does_not_read_costs_no_lease() {
    let bench = Bench::new();
    let id = bench.add(&["a"]);
    let mut worker =
        bench.start_worker("a --ttl 3s --until-empty", "echo 1 > $BENCH/began; yes | head -c 3000000");
    bench.written("began");
    let before = bench.task(&id)["leaseExpiresAt"].as_str().unwrap().to_owned();
    eventually("a renewal long after", || {
        let task = bench.task(&id);
        assert_eq!(task["state"], "running");
        bench.json("workers")[0]["state"] == "alive" && later(&task, &before)
    });
    let mut read = Vec::new();
    std::io::Read::read_to_end(worker.0.stdout.as_mut().unwrap(), &mut read).unwrap();
    assert_eq!((read.len(), worker.wait()), (3_000_000, 0));
    assert_eq!(bench.task(&id)["attempt"], 1);
}

/// More than a whole lease after that time.
fn later(task: &serde_json::Value, before: &str) -> bool {
    let seconds =
        |text: &str| text[17..19].parse::<f64>().unwrap() + 60.0 * text[14..16].parse::<f64>().unwrap();
    let now = seconds(task["leaseExpiresAt"].as_str().unwrap());
    (now - seconds(before) + 3600.0) % 3600.0 >= 4.0
}
