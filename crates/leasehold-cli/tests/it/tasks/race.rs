//! Many workers, one of them killed in the middle: no task is lost, and none is settled twice.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::support::{Bench, eventually};

const TASKS: usize = 200;

#[test]
fn five_workers_one_of_them_killed_do_every_task() {
    let bench = Bench::new();
    let mut add = bench
        .command("tasks add a --lines - --backoff 1ms".split(' '))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    add.stdin.take().unwrap().write_all("1\n".repeat(TASKS).as_bytes()).unwrap();
    assert!(add.wait().unwrap().success());
    // One short line in one write: appended whole.
    let script = r#"echo "$LEASEHOLD_TASK $LEASEHOLD_TOKEN" >> $BENCH/effects; sleep 0.02"#;
    let mut workers: Vec<_> =
        (0..5).map(|_| bench.start_worker("a --slots 2 --ttl 5s --kill-after 200ms", script)).collect();
    let effects = || std::fs::read_to_string(bench.path().join("effects")).unwrap_or_default();
    eventually("some work", || effects().lines().count() > TASKS / 5);
    let mut killed = workers.remove(0);
    killed.signal(Signal::SIGKILL);
    killed.wait();
    eventually("all tasks", || bench.json("tasks counts a")[0]["counts"]["succeeded"] == TASKS);
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
    let tasks = bench.json("tasks list --all");
    let tasks = tasks.as_array().unwrap();
    assert_eq!(tasks.len(), TASKS);
    for task in tasks {
        let tokens = &by_task[task["id"].as_str().unwrap()];
        // One for each attempt that did not settle it: its worker was killed, or could not keep it on a busy machine.
        let before = task["events"].as_array().unwrap().len();
        assert!(tokens.contains(&task["token"].to_string().as_str()), "{task}");
        assert!(tokens.len() <= 1 + before, "{task}: {tokens:?}");
        assert!(task["attempt"].as_u64().unwrap() <= 1 + before as u64, "{task}");
    }
}
