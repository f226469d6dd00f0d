//! Killed and stopped processes: every process of a command is dead before its lease can end, and
//! another worker continues the task.

use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::support::{Working, is_alive};
use crate::support::{Sandbox, eventually};

/// Command that ignores SIGTERM, with a child outside of its process group.
const FAMILY: &str = r#"
    trap '' TERM INT HUP
    [ $LEASEHOLD_ATTEMPT = 1 ] || { echo again; exit 0; }
    setsid sh -c 'trap "" TERM; (echo $$ > $SANDBOX/orphan; while :; do sleep 0.05; done) & ' &
    while ! [ -s $SANDBOX/orphan ]; do sleep 0.01; done
    echo $PPID > $SANDBOX/monitor; echo $$ > $SANDBOX/command
    while :; do sleep 0.05; done
"#;

#[test]
fn when_a_worker_is_killed_its_command_dies_and_another_worker_continues() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--backoff", "1ms"]);
    let words = "a --ttl 2s --kill-after 300ms";
    let mut worker = sandbox.start_worker(words, FAMILY);
    let (command, monitor) = (sandbox.written("command"), sandbox.written("monitor"));
    let first = sandbox.task(&id);
    worker.signal(Signal::SIGKILL);
    worker.wait();
    for pid in [&command, &monitor] {
        eventually("their death", || !is_alive(pid));
    }
    assert_eq!(sandbox.task(&id)["state"], "running", "dead before the lease has ended");
    let _other = sandbox.start_worker(words, FAMILY);
    let task = sandbox.until_task(&id, "succeeded");
    assert_eq!((&task["result"], &task["attempt"]), (&"again".into(), &2.into()));
    assert_eq!(task["events"][0]["kind"], "expired");
    assert!(task["token"].as_u64() > first["token"].as_u64());
}

#[test]
fn when_a_monitor_is_killed_everything_dies_and_the_attempt_has_failed() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--backoff", "1ms"]);
    let _worker = sandbox.start_worker("a", FAMILY);
    let (command, monitor) = (sandbox.written("command"), sandbox.written("monitor"));
    kill(Pid::from_raw(monitor.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    let task = sandbox.until_task(&id, "succeeded");
    assert_eq!(
        task["events"][0]["why"].as_str().unwrap().lines().next(),
        Some("the lease monitor of the command was killed")
    );
    assert!(!is_alive(&command));
    let orphan = sandbox.written("orphan");
    assert!(!is_alive(&orphan), "a daemon was left behind");
}

#[test]
fn when_a_worker_is_stopped_its_command_is_dead_before_the_lease_ends() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--backoff", "1ms"]);
    let worker = sandbox.start_worker("a --ttl 2s --kill-after 300ms", FAMILY);
    let command = sandbox.written("command");
    worker.signal(Signal::SIGSTOP);
    eventually("its death", || !is_alive(&command));
    assert_eq!(sandbox.task(&id)["state"], "running", "dead before the lease has ended");
    eventually("the end of the lease", || sandbox.json("tasks recover")["returned"] == 1);
    let stale = sandbox.task(&id)["token"].as_u64();
    worker.signal(Signal::SIGCONT);
    let task = sandbox.until_task(&id, "succeeded");
    assert!(task["token"].as_u64() > stale);
}

/// One task kills its worker with all tasks of that worker; seven other tasks run concurrently.
#[test]
fn a_task_that_kills_its_workers_does_not_fail_other_tasks() {
    let sandbox = Sandbox::new();
    let add = |what: &str| sandbox.add(&["a", "--backoff", "1ms", "--max-attempts", "3", "--payload", what]);
    let innocent: Vec<String> = (0..7).map(|_| add("\"innocent\"")).collect();
    let poison = add("\"poison\"");
    let script = r#"
        read -r what
        [ "$what" = '"poison"' ] || { sleep 0.6; exit 0; }
        sleep 0.3
        kill -9 "$(cat $SANDBOX/worker)"
        sleep 60
    "#;
    let start = || {
        let plain = sandbox.worker("a --slots 8 --ttl 3s --kill-after 100ms", script);
        // The worker writes its own pid, so that no command can mistake another process for it.
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > $SANDBOX/worker; exec \"$@\"", "sh"]);
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
            |id: &String| ["succeeded", "failed"].contains(&sandbox.task(id)["state"].as_str().unwrap());
        innocent.iter().chain([&poison]).all(is_over)
    });
    let task = sandbox.task(&poison);
    assert_eq!((&task["state"], &task["attempt"]), (&"failed".into(), &3.into()), "{task}");
    for id in &innocent {
        let task = sandbox.task(id);
        assert_eq!(task["state"], "succeeded", "{task}");
    }
}

#[test]
fn recover_returns_the_tasks_of_a_dead_worker() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--backoff", "1h"]);
    let mut worker = sandbox.start_worker("a --ttl 1s", "echo 1 > $SANDBOX/began; sleep 60");
    sandbox.written("began");
    worker.signal(Signal::SIGKILL);
    worker.wait();
    eventually("the end of the lease", || {
        let ran = sandbox.ok("tasks recover");
        assert!(
            ran == "nothing to recover\n" || ran.starts_with("1 lease expired: 1 can run again"),
            "{ran}"
        );
        ran != "nothing to recover\n"
    });
    assert_eq!(sandbox.task(&id)["events"][0]["kind"], "expired");
}
