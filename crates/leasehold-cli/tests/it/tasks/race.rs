//! Several workers, one of them killed while it runs tasks: no task is lost or settled twice.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::support::{Sandbox, eventually};

const TASKS: usize = 200;

#[test]
fn five_workers_one_of_them_killed_do_every_task() {
    let sandbox = Sandbox::new();
    let mut add = sandbox
        .command("tasks add a --lines - --backoff 1ms".split(' '))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    add.stdin.take().unwrap().write_all("1\n".repeat(TASKS).as_bytes()).unwrap();
    assert!(add.wait().unwrap().success());
    // A short line in a single write is appended atomically.
    let script = r#"echo "$LEASEHOLD_TASK $LEASEHOLD_TOKEN" >> $SANDBOX/effects; sleep 0.02"#;
    let mut workers: Vec<_> =
        (0..5).map(|_| sandbox.start_worker("a --slots 2 --ttl 5s --kill-after 200ms", script)).collect();
    let effects = || std::fs::read_to_string(sandbox.path().join("effects")).unwrap_or_default();
    eventually("some work", || effects().lines().count() > TASKS / 5);
    let mut killed = workers.remove(0);
    killed.signal(Signal::SIGKILL);
    killed.wait();
    eventually("all tasks", || sandbox.json("tasks counts a")[0]["counts"]["succeeded"] == TASKS);
    for worker in &mut workers {
        worker.signal(Signal::SIGTERM);
    }
    for worker in &mut workers {
        assert_eq!(worker.wait(), 0);
    }

    let effects = effects();
    let lines: BTreeSet<_> = effects.lines().collect();
    assert_eq!(lines.len(), effects.lines().count(), "an attempt was made twice");
    let mut by_task = BTreeMap::<&str, Vec<&str>>::new();
    for (task, token) in effects.lines().filter_map(|line| line.split_once(' ')) {
        by_task.entry(task).or_default().push(token);
    }
    let tasks = sandbox.json("tasks list --all");
    let tasks = tasks.as_array().unwrap();
    assert_eq!(tasks.len(), TASKS);
    for task in tasks {
        let tokens = &by_task[task["id"].as_str().unwrap()];
        // One for each attempt that did not settle the task: its worker was killed, or lost the
        // lease on a busy machine.
        let before = task["events"].as_array().unwrap().len();
        assert!(tokens.contains(&task["token"].to_string().as_str()), "{task}");
        assert!(tokens.len() <= 1 + before, "{task}: {tokens:?}");
        assert!(task["attempt"].as_u64().unwrap() <= 1 + before as u64, "{task}");
    }
}
