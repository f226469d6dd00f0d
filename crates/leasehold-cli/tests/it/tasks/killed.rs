//! Killed, stopped, forgotten: everything of a command is dead before its lease can end, and the task goes on elsewhere.

use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::shop::{Working, is_alive};
use crate::support::{Bench, eventually};

/// A command that is deaf to polite signals, with a child outside of its group.
const FAMILY: &str = r#"
    trap '' TERM INT HUP
    [ $LEASEHOLD_ATTEMPT = 1 ] || { echo again; exit 0; }
    setsid sh -c 'trap "" TERM; (echo $$ > $BENCH/ghost; while :; do sleep 0.05; done) & ' &
    while ! [ -s $BENCH/ghost ]; do sleep 0.01; done
    echo $PPID > $BENCH/keeper; echo $$ > $BENCH/command
    while :; do sleep 0.05; done
"#;

#[test]
fn when_a_worker_is_killed_its_command_dies_and_another_worker_goes_on() {
    let bench = Bench::new();
    let id = bench.add(&["a", "--backoff", "1ms"]);
    let words = "a --ttl 2s --kill-after 300ms";
    let mut worker = bench.start_worker(words, FAMILY);
    let (command, keeper) = (bench.written("command"), bench.written("keeper"));
    let first = bench.task(&id);
    worker.signal(Signal::SIGKILL);
    worker.wait();
    for pid in [&command, &keeper] {
        eventually("their death", || !is_alive(pid));
    }
    assert_eq!(bench.task(&id)["state"], "running", "dead before the lease has ended");
    let _other = bench.start_worker(words, FAMILY);
    let task = bench.until_task(&id, "succeeded");
    assert_eq!((&task["result"], &task["attempt"]), (&"again".into(), &2.into()));
    assert_eq!(task["events"][0]["kind"], "expired");
    assert!(task["token"].as_u64() > first["token"].as_u64());
}

#[test]
fn when_a_keeper_is_killed_everything_dies_and_the_attempt_has_failed() {
    let bench = Bench::new();
    let id = bench.add(&["a", "--backoff", "1ms"]);
    let _worker = bench.start_worker("a", FAMILY);
    let (command, keeper) = (bench.written("command"), bench.written("keeper"));
    kill(Pid::from_raw(keeper.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    let task = bench.until_task(&id, "succeeded");
    assert_eq!(
        task["events"][0]["why"].as_str().unwrap().lines().next(),
        Some("the keeper of the command was killed")
    );
    assert!(!is_alive(&command));
    let ghost = bench.written("ghost");
    assert!(!is_alive(&ghost), "a daemon was left behind");
}

#[test]
fn when_a_worker_is_stopped_its_command_is_dead_before_the_lease_ends() {
    let bench = Bench::new();
    let id = bench.add(&["a", "--backoff", "1ms"]);
    let worker = bench.start_worker("a --ttl 2s --kill-after 300ms", FAMILY);
    let command = bench.written("command");
    worker.signal(Signal::SIGSTOP);
    eventually("its death", || !is_alive(&command));
    assert_eq!(bench.task(&id)["state"], "running", "dead before the lease has ended");
    eventually("the end of the lease", || bench.json("tasks recover")["returned"] == 1);
    let stale = bench.task(&id)["token"].as_u64();
    worker.signal(Signal::SIGCONT);
    let task = bench.until_task(&id, "succeeded");
    assert!(task["token"].as_u64() > stale);
}

/// One task kills its worker, with all that it has; seven others run beside it.
#[test]
fn a_task_that_kills_its_workers_does_not_fail_those_beside_it() {
    let bench = Bench::new();
    let add = |what: &str| bench.add(&["a", "--backoff", "1ms", "--max-attempts", "3", "--payload", what]);
    let innocent: Vec<String> = (0..7).map(|_| add("\"innocent\"")).collect();
    let poison = add("\"poison\"");
    let script = r#"
        read -r what
        [ "$what" = '"poison"' ] || { sleep 0.6; exit 0; }
        sleep 0.3
        kill -9 "$(cat $BENCH/worker)"
        sleep 60
    "#;
    let start = || {
        let plain = bench.worker("a --slots 8 --ttl 1s --kill-after 100ms", script);
        // The worker itself writes which process it is, so that no command can take another one for it.
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > $BENCH/worker; exec \"$@\"", "sh"]);
        command.arg(plain.get_program()).args(plain.get_args()).stdout(Stdio::null()).stderr(Stdio::null());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = plain.get_current_dir() {
            command.current_dir(folder);
        }
        Working(command.spawn().unwrap())
    };
    let mut worker = start();
    eventually("the end of all tasks", || {
        if worker.0.try_wait().unwrap().is_some() {
            worker = start();
        }
        let is_over =
            |id: &String| ["succeeded", "failed"].contains(&bench.task(id)["state"].as_str().unwrap());
        innocent.iter().chain([&poison]).all(is_over)
    });
    let task = bench.task(&poison);
    assert_eq!((&task["state"], &task["attempt"]), (&"failed".into(), &3.into()), "{task}");
    for id in &innocent {
        let task = bench.task(id);
        assert_eq!(task["state"], "succeeded", "{task}");
    }
}

#[test]
fn recover_gives_back_what_a_dead_worker_had() {
    let bench = Bench::new();
    let id = bench.add(&["a", "--backoff", "1h"]);
    let mut worker = bench.start_worker("a --ttl 1s", "echo 1 > $BENCH/began; sleep 60");
    bench.written("began");
    worker.signal(Signal::SIGKILL);
    worker.wait();
    eventually("the end of the lease", || {
        let ran = bench.ok("tasks recover");
        assert!(
            ran == "nothing to recover\n" || ran.starts_with("1 lease had run out: 1 can run again"),
            "{ran}"
        );
        ran != "nothing to recover\n"
    });
    assert_eq!(bench.task(&id)["events"][0]["kind"], "expired");
}
