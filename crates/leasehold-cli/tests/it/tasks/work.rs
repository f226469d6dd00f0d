//! `tasks work`: input of the command, and the effect of its end on the task.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::support::{Working, is_alive};
use crate::serve::support::Served;
use crate::support::{Sandbox, eventually};

#[test]
fn payload_and_environment_arrive_and_the_output_is_the_result() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["mail", "--payload", r#"{"to":"ada"}"#, "--key", "k"]);
    let ran = sandbox.work(
        "mail",
        r#"cat > $SANDBOX/payload; env | grep ^LEASEHOLD_ | grep -v PROGRESS | sort > $SANDBOX/env; echo '{"sent": 1.10}'"#,
    );
    assert_eq!(ran.stdout, "{\"sent\": 1.10}\n", "it is passed on");
    let task = sandbox.task(&id);
    assert_eq!((&task["state"], &task["result"]), (&"succeeded".into(), &json!({"sent": 1.10})));
    assert_eq!(std::fs::read_to_string(sandbox.path().join("payload")).unwrap(), r#"{"to":"ada"}"#);
    let env = std::fs::read_to_string(sandbox.path().join("env")).unwrap();
    let store = sandbox.path().join("store.db");
    let expected = format!(
        "LEASEHOLD_ATTEMPT=1\nLEASEHOLD_KEY=k\nLEASEHOLD_QUEUE=mail\nLEASEHOLD_STORE=sqlite:{}\n\
         LEASEHOLD_TASK={id}\nLEASEHOLD_TOKEN={}\n",
        store.display(),
        task["token"]
    );
    assert_eq!(env, expected);
}

#[test]
fn output_that_is_not_json_is_a_string_and_empty_output_is_no_result() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    sandbox.work("a", "echo it is done");
    assert_eq!(sandbox.task(&id)["result"], "it is done");
    let id = sandbox.add(&["a"]);
    sandbox.work("a", "true");
    assert_eq!(sandbox.task(&id).get("result"), None);
    let id = sandbox.add(&["a"]);
    let ran = sandbox.work("a", "yes 0123456789 | head -c 3000000");
    assert_eq!(ran.stdout.len(), 3_000_000, "all of it is passed on");
    let kept = sandbox.task(&id)["result"].as_str().unwrap().to_owned();
    assert!(kept.len() < 70_000 && kept.ends_with('…'), "{}", kept.len());
}

#[test]
fn an_attempt_that_reaches_the_timeout_of_its_task_is_ended() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--timeout", "300ms", "--max-attempts", "1"]);
    let ran = sandbox.work("a", "sleep 100");
    assert!(
        ran.stderr.contains("it reached its time limit; given up after 1 of 1 attempts"),
        "{}",
        ran.stderr
    );
    let task = sandbox.task(&id);
    assert_eq!((&task["state"], &task["timeoutSeconds"]), (&"failed".into(), &json!(0.3)));
    let page = sandbox.run(&format!("tasks show {id}")).stdout;
    assert!(page.contains("timeout") && page.contains("300ms"), "{page}");
    let refused = sandbox.run("tasks add a --timeout 0");
    assert_eq!(refused.code, 64, "{}", refused.stderr);
}

#[test]
fn a_payload_never_becomes_code() {
    let sandbox = Sandbox::new();
    let nasty = r#""$(touch pwned) `touch pwned` ; touch pwned""#;
    let id = sandbox.add(&["a", "--payload", nasty, "--key", "$(touch pwned)", "--lock", "; touch pwned"]);
    sandbox.work("a", r#"cat; echo "$LEASEHOLD_KEY $LEASEHOLD_LOCK" >&2"#);
    assert_eq!(sandbox.task(&id)["state"], "succeeded");
    assert!(!sandbox.path().join("pwned").exists());
}

#[test]
fn a_large_payload_need_not_be_read() {
    let sandbox = Sandbox::new();
    let text = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    std::fs::write(sandbox.path().join("large"), &text).unwrap();
    let id = sandbox.add(&["a", "--payload", "@large"]);
    sandbox.add(&["a", "--payload", "@large"]);
    let ran =
        sandbox.work("a", "[ $LEASEHOLD_ATTEMPT = 1 ] && [ -e $SANDBOX/once ] && wc -c; touch $SANDBOX/once");
    assert!(ran.stdout.contains("1048576"), "{ran:?}");
    assert_eq!(sandbox.task(&id)["state"], "succeeded");
}

#[test]
fn a_failed_attempt_is_retried_and_every_attempt_is_reported() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--backoff", "1ms"]);
    let worker =
        sandbox.start_worker("a", "echo try $LEASEHOLD_ATTEMPT >&2; [ $LEASEHOLD_ATTEMPT = 3 ] || exit 9");
    let task = sandbox.until_task(&id, "succeeded");
    drop(worker);
    assert_eq!(task["attempt"], 3);
    let events = task["events"].as_array().unwrap();
    let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["failed", "failed"]);
    assert_eq!(events[1]["why"], "the command failed with exit code 9\ntry 2");
}

#[test]
fn the_exit_code_decides() {
    let sandbox = Sandbox::new();
    for (script, state, error) in [
        ("exit 65", "failed", "the command failed permanently with exit code 65"),
        ("exit 78", "failed", "the command failed permanently with exit code 78"),
        ("exit 1", "scheduled", "the command failed with exit code 1"),
        ("kill -9 $$", "scheduled", "the command was ended by signal 9"),
    ] {
        let id = sandbox.add(&["a", "--backoff", "1h"]);
        let ran = sandbox.work("a", script);
        let task = sandbox.task(&id);
        assert_eq!((task["state"].as_str(), task["error"].as_str()), (Some(state), Some(error)), "{script}");
        assert!(ran.stderr.contains(error), "{script}: {}", ran.stderr);
        assert_eq!(task["attempt"], 1);
    }
    let last = sandbox.add(&["a", "--max-attempts", "1"]);
    sandbox.work("a", "exit 1");
    assert_eq!(sandbox.task(&last)["state"], "failed");
    let later = sandbox.add(&["a", "--backoff", "1h"]);
    sandbox.work("a", "exit 75");
    let task = sandbox.task(&later);
    assert_eq!((&task["state"], &task["attempt"]), (&"scheduled".into(), &0.into()), "75 is no attempt");
}

#[test]
fn once_is_one_task() {
    let sandbox = Sandbox::new();
    sandbox.add(&["a"]);
    sandbox.add(&["a"]);
    let ran = crate::support::run(&mut sandbox.worker("a --once", "echo ran"));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
    assert_eq!(sandbox.json("tasks counts a")[0]["counts"]["pending"], 1);
}

#[test]
fn several_run_at_once_and_their_lines_do_not_mix() {
    let sandbox = Sandbox::new();
    for _ in 0..4 {
        sandbox.add(&["a"]);
    }
    // Each waits until all four are running.
    let script = r"touch $SANDBOX/in.$LEASEHOLD_TASK; while [ $(ls $SANDBOX/in.* | wc -l) -lt 4 ]; do sleep 0.01; done
        for i in 1 2 3 4 5; do printf aaaaa; printf 'bbbbb\n'; done";
    let ran = sandbox.work("a --slots 4", script);
    assert_eq!(ran.stdout, "aaaaabbbbb\n".repeat(20));
}

#[test]
fn a_task_with_a_lock_holds_it_and_knows_it() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--lock", "disk"]);
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        r#"echo "$LEASEHOLD_LOCK"; {binary} fence check disk --token $LEASEHOLD_LOCK_TOKEN >&2 && echo held; \
           {binary} run disk -- true || echo refused"#
    );
    let ran = sandbox.work("a", &script);
    assert_eq!(ran.stdout, "disk\nheld\nrefused\n", "{ran:?}");
    assert!(ran.stderr.contains("held by the enclosing leasehold run"), "{ran:?}");
    assert_eq!(sandbox.task(&id)["state"], "succeeded");
    assert_eq!(sandbox.json("locks status disk")["isLocked"], false);
}

#[test]
fn a_task_whose_lock_is_taken_waits_for_it() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("disk --ttl 1h");
    let id = sandbox.add(&["a", "--lock", "disk"]);
    let other = sandbox.add(&["a"]);
    let _worker = sandbox.start_worker("a", "true");
    sandbox.until_task(&other, "succeeded");
    assert_ne!(sandbox.task(&id)["state"], "succeeded");
    sandbox.ok(&format!("locks release disk {}", held.with));
    assert_eq!(sandbox.until_task(&id, "succeeded")["attempt"], 1);
}

#[test]
fn processes_left_behind_are_ended_before_the_task_is_settled() {
    let sandbox = Sandbox::new();
    sandbox.add(&["a"]);
    sandbox.work(
        "a --kill-after 200ms",
        "setsid sh -c 'trap \"\" TERM; echo $$ > $SANDBOX/daemon; while :; do sleep 0.1; done' & \
        while ! [ -s $SANDBOX/daemon ]; do sleep 0.01; done",
    );
    assert!(!is_alive(&sandbox.written("daemon")));
}

#[test]
fn cancel_ends_the_command() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let _worker = sandbox.start_worker(
        "a --ttl 3s --kill-after 300ms",
        "trap '' TERM; echo $$ > $SANDBOX/pid; while :; do sleep 0.1; done",
    );
    let pid = sandbox.written("pid");
    let ran = sandbox.run(&format!("tasks cancel {id} --reason enough"));
    assert_eq!(ran.stdout, format!("{id}  stopping\n"));
    let task = sandbox.until_task(&id, "aborted");
    assert!(!is_alive(&pid), "the task was settled while its command lived");
    assert_eq!(task["cancel"]["reason"], "enough");
}

#[test]
fn a_stopping_worker_finishes_running_tasks_and_leases_no_more() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let next = sandbox.add(&["a"]);
    let script = "echo 1 > $SANDBOX/began; while ! [ -e $SANDBOX/go ]; do sleep 0.01; done; echo finished";
    let mut worker = sandbox.start_worker("a", script);
    sandbox.written("began");
    worker.signal(Signal::SIGTERM);
    eventually("draining", || sandbox.json("workers")[0]["state"] == "draining");
    std::fs::write(sandbox.path().join("go"), "").unwrap();
    assert_eq!(worker.wait(), 0);
    assert_eq!(sandbox.task(&id)["result"], "finished");
    assert_eq!(sandbox.task(&next)["state"], "pending");
    assert_eq!(sandbox.json("workers"), json!([]), "it has deregistered");
}

#[test]
fn after_the_grace_a_command_is_ended_and_its_task_returned() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let script = "trap '' TERM; echo $$ > $SANDBOX/pid; while :; do sleep 0.1; done";
    let mut worker = sandbox.start_worker("a --grace 200ms --kill-after 200ms", script);
    let pid = sandbox.written("pid");
    worker.signal(Signal::SIGINT);
    assert_eq!(worker.wait(), 0);
    assert!(!is_alive(&pid));
    let task = sandbox.task(&id);
    assert_eq!((&task["state"], &task["attempt"]), (&"pending".into(), &0.into()), "it counts as no attempt");
    assert_eq!(task["events"][0]["kind"], "returned");
}

#[test]
fn a_second_signal_ends_at_once() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let mut worker = sandbox
        .start_worker("a --grace 10m", "trap '' TERM; echo $$ > $SANDBOX/pid; while :; do sleep 0.1; done");
    let pid = sandbox.written("pid");
    worker.signal(Signal::SIGTERM);
    eventually("draining", || sandbox.json("workers")[0]["state"] == "draining");
    let before = Instant::now();
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait(), 128 + 15);
    assert!(before.elapsed() < Duration::from_secs(10));
    assert!(!is_alive(&pid));
    let task = sandbox.task(&id);
    assert!(task["state"] == "pending" || task["state"] == "scheduled", "{task}");
    assert_eq!(task["attempt"], 0);
}

/// Also from a child that has inherited only the environment.
#[test]
fn progress_can_be_seen_while_the_command_runs() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        r#"{binary} tasks progress --done 1 --of 4 --note 'first "pass"' 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- || exit 65
        echo 'nonsense' > $LEASEHOLD_PROGRESS; while ! [ -e $SANDBOX/go ]; do sleep 0.01; done
        echo '{{"done": 4}}' > $LEASEHOLD_PROGRESS; echo "$LEASEHOLD_PROGRESS" > $SANDBOX/path"#
    );
    let worker = sandbox.start_worker("a", &script);
    eventually("progress", || sandbox.task(&id)["progress"]["note"] == "first \"pass\"");
    assert!(sandbox.ok("tasks list").contains("25 % first \"pass\""));
    std::fs::write(sandbox.path().join("go"), "").unwrap();
    sandbox.until_task(&id, "succeeded");
    drop(worker);
    let mut late = sandbox.command("tasks progress --done 5".split(' '));
    let late = crate::support::run(late.env("LEASEHOLD_PROGRESS", sandbox.written("path").trim()));
    assert_eq!(late.code, 79, "{late:?}");
    let nowhere = sandbox.run("tasks progress --done 5");
    assert_eq!(nowhere.code, 64);
    assert!(nowhere.stderr.contains("LEASEHOLD_PROGRESS is not set"), "{nowhere:?}");
    let mut file = sandbox.command("tasks progress --done 5".split(' '));
    std::fs::write(sandbox.path().join("mine"), "precious").unwrap();
    assert_eq!(crate::support::run(file.env("LEASEHOLD_PROGRESS", sandbox.path().join("mine"))).code, 64);
    assert_eq!(std::fs::read_to_string(sandbox.path().join("mine")).unwrap(), "precious");
}

/// The worker does not wait for the reader of its output before it sees the second signal, and before it exits.
#[test]
fn a_second_signal_ends_a_worker_whose_output_is_not_read() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let mut worker = sandbox.start_worker("a", "echo 1 > $SANDBOX/began; exec yes >&2");
    sandbox.written("began");
    // By then the pipe and the queue of the writer are full.
    std::thread::sleep(Duration::from_secs(1));
    worker.signal(Signal::SIGTERM);
    // Two signals of a kind that are pending at the same time count as one.
    eventually("the end of the worker", || {
        worker.signal(Signal::SIGTERM);
        std::thread::sleep(Duration::from_millis(300));
        worker.0.try_wait().unwrap().is_some()
    });
    assert_eq!(worker.wait(), 143);
    assert_ne!(sandbox.task(&id)["state"], "succeeded");
}

/// The reader of the output is waited for until a moment after the grace.
#[test]
fn after_the_grace_a_worker_ends_although_its_output_is_not_read() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let mut worker =
        sandbox.start_worker("a --grace 200ms --kill-after 200ms", "echo 1 > $SANDBOX/began; exec yes >&2");
    sandbox.written("began");
    // By then the pipe and the queue of the writer are full.
    std::thread::sleep(Duration::from_secs(1));
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait(), 0);
    let task = sandbox.task(&id);
    assert_eq!((&task["state"], &task["attempt"]), (&"pending".into(), &0.into()), "{task:#}");
}

#[test]
fn cancel_settles_the_task_although_the_output_is_not_read() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let _worker =
        sandbox.start_worker("a --ttl 6s --kill-after 200ms", "echo 1 > $SANDBOX/began; exec yes >&2");
    sandbox.written("began");
    std::thread::sleep(Duration::from_secs(1));
    sandbox.ok(&format!("tasks cancel {id}"));
    sandbox.until_task(&id, "aborted");
}

/// The system's list of signals has names for the first 31 only.
#[test]
fn the_death_by_a_real_time_signal_is_a_failed_attempt() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--max-attempts", "1"]);
    sandbox.work("a", "kill -34 $$; sleep 1000");
    let task = sandbox.task(&id);
    assert_eq!((&task["state"], &task["attempt"]), (&"failed".into(), &1.into()), "{task:#}");
}

/// A slow reader delays the commands, not their leases.
#[test]
fn a_slow_reader_costs_no_lease() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let mut worker =
        sandbox.start_worker("a --ttl 6s --until-empty", "echo 1 > $SANDBOX/began; yes | head -c 3000000");
    sandbox.written("began");
    let before = sandbox.task(&id)["leaseExpiresAt"].as_str().unwrap().to_owned();
    eventually("a renewal long after", || {
        let task = sandbox.task(&id);
        assert_eq!(task["state"], "running");
        sandbox.json("workers")[0]["state"] == "alive" && later(&task, &before)
    });
    let mut read = Vec::new();
    std::io::Read::read_to_end(worker.0.stdout.as_mut().unwrap(), &mut read).unwrap();
    assert_eq!((read.len(), worker.wait()), (3_000_000, 0));
    assert_eq!(sandbox.task(&id)["attempt"], 1);
}

/// Whether the lease expires more than a whole ttl later than at `before`.
fn later(task: &serde_json::Value, before: &str) -> bool {
    let seconds =
        |text: &str| text[17..19].parse::<f64>().unwrap() + 60.0 * text[14..16].parse::<f64>().unwrap();
    let now = seconds(task["leaseExpiresAt"].as_str().unwrap());
    (now - seconds(before) + 3600.0) % 3600.0 >= 4.0
}

/// Starts a worker, and stops its store after the command has ended: its result cannot be stored.
fn without_store(sandbox: &Sandbox, words: &str) -> Working {
    let served = Served::ready(sandbox, "");
    let store = format!("http://{}", served.address);
    sandbox.ok(&format!("--store {store} tasks add a 1"));
    let script =
        "echo 1 > $SANDBOX/began; while ! [ -e $SANDBOX/go ]; do sleep 0.01; done; echo 1 > $SANDBOX/ended";
    let worker = sandbox.start_worker(&format!("a --store {store} --once {words}"), script);
    sandbox.written("began");
    // Also after the worker has begun to stop by itself, because of `--once`.
    std::thread::sleep(Duration::from_millis(300));
    served.signal("-KILL");
    served.wait();
    std::fs::write(sandbox.path().join("go"), "").unwrap();
    sandbox.written("ended");
    std::thread::sleep(Duration::from_millis(300));
    worker
}

#[test]
fn after_the_grace_a_worker_ends_although_its_results_cannot_be_stored() {
    let sandbox = Sandbox::new();
    let mut worker = without_store(&sandbox, "--grace 200ms");
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait(), 0);
}

#[test]
fn a_second_signal_ends_a_worker_whose_results_cannot_be_stored() {
    let sandbox = Sandbox::new();
    let mut worker = without_store(&sandbox, "--grace 10m");
    worker.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    assert!(worker.0.try_wait().unwrap().is_none(), "it tries to store the result");
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait(), 143);
}

#[test]
fn each_line_of_a_log_names_its_task_on_request() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let ran = sandbox.work("a --prefix always", "echo one; echo two >&2");
    let prefix = format!("{} | ", &id[28..]);
    assert_eq!(ran.stdout, format!("{prefix}one\n"));
    assert!(ran.stderr.contains(&format!("{prefix}two\n")), "{}", ran.stderr);
    sandbox.add(&["a"]);
    assert_eq!(sandbox.work("a", "echo one").stdout, "one\n");
}
