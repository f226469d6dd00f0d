//! `watch` and `history` of tasks and executions.

use std::io::{BufRead, BufReader};
use std::process::Child;

use serde_json::Value;

use crate::support::{Sandbox, shape};

/// `watch` whose start position is known; killed on drop.
struct Watch {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Watch {
    fn start(sandbox: &Sandbox, words: &str) -> Self {
        let mut child = sandbox.start(words);
        let mut messages = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(messages.any(|line| line.unwrap() == "watching; press Ctrl-C to stop"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.lines.next().expect("a line").unwrap()).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the second word of each line: the kind of the event.
fn kinds(lines: &[String]) -> Vec<&str> {
    lines.iter().filter_map(|line| line.split_whitespace().nth(1)).collect()
}

#[test]
fn watch_prints_the_events_of_a_queue() {
    let sandbox = Sandbox::new();
    sandbox.add(&["mail"]);
    let mut watch = Watch::start(&sandbox, "watch --queue mail");
    sandbox.add(&["other"]);
    sandbox.work("mail other", "true");
    let lines = watch.next(2);
    insta::assert_snapshot!(sandbox.tidy(&lines.join("\n")), @"
    [TIME]  started  mail  [ID]  attempt 1
    [TIME]  succeeded  mail  [ID]  attempt 1  after [AGE]
    ");
    let id = sandbox.add(&["mail", "--max-attempts", "1"]);
    sandbox.work("mail", "echo broken >&2; exit 3");
    let lines = watch.next(4);
    assert_eq!(kinds(&lines), ["added", "started", "attempt_failed", "failed"]);
    assert!(lines.iter().all(|line| line.contains(&id)), "{lines:?}");
    assert!(lines[3].ends_with(": broken"), "{lines:?}");
    sandbox.run_words(&["tasks", "retry", &id]);
    sandbox.run_words(&["tasks", "cancel", &id]);
    assert_eq!(kinds(&watch.next(3)), ["retried", "cancel_requested", "aborted"]);
}

#[test]
fn watch_prints_the_events_of_a_workflow_and_of_all_tasks_as_json() {
    let sandbox = Sandbox::new();
    let mut deploy = Watch::start(&sandbox, "watch --workflow deploy");
    let mut all = Watch::start(&sandbox, "watch --tasks");
    sandbox.add(&["mail"]);
    sandbox.run_words(&["workflows", "run", "deploy", "--", "true"]);
    assert_eq!(kinds(&deploy.next(3)), ["added", "started", "succeeded"]);
    assert_eq!(all.next(4).iter().filter(|line| line.contains("  workflow/deploy  ")).count(), 3);
    // With JSON nothing is printed before the first event: the feed has started when the first one is read.
    let mut child = sandbox.start("watch --queue mail --json");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let line = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                sandbox.add(&["mail"]);
            }
        });
        let line = lines.next().unwrap().unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        line
    });
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&event["kind"], &event["queue"]), (&"added".into(), &"mail".into()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_queue_that_does_not_exist_yet_can_be_watched() {
    let sandbox = Sandbox::new();
    sandbox.add(&["mail"]);
    let mut child = sandbox.start("watch --queue mial");
    let messages = BufReader::new(child.stderr.take().unwrap()).lines().take(2).map(Result::unwrap);
    assert_eq!(
        messages.collect::<Vec<_>>(),
        ["the queue 'mial' has never had a task; did you mean 'mail'?", "watching; press Ctrl-C to stop"]
    );
    sandbox.add(&["mial"]);
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(line.contains("  added  "), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn history_of_a_task_a_queue_and_an_execution() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["mail", "--backoff", "1ms", "--max-attempts", "2"]);
    sandbox.add(&["other"]);
    sandbox.work("mail", "exit $((2 - LEASEHOLD_ATTEMPT))");
    let last = &id[id.len() - 8..];
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok(&format!("history --task {last}"))), @"
    TIME  EVENT  ATTEMPT  DETAILS
    [TIME]  added
    [TIME]  started  1
    [TIME]  attempt_failed  1  after [AGE]: the command failed with exit code 1
    [TIME]  started  2
    [TIME]  succeeded  2  after [AGE]
    ");
    assert_eq!(sandbox.ok(&format!("history --task {id}")).lines().count(), 6);
    assert_eq!(sandbox.ok("history --queue mail").lines().count(), 6);
    assert_eq!(sandbox.ok("history --tasks").lines().count(), 7);
    let ran = sandbox.run("history --queue mail --limit 2");
    assert_eq!(
        (ran.stdout.lines().count(), ran.stderr.as_str()),
        (3, "there are older ones; raise --limit\n")
    );
    insta::assert_snapshot!(shape(sandbox.json(&format!("history --task {id} --limit 3"))));
    sandbox.run_words(&["workflows", "run", "deploy", "--", "true"]);
    let execution = sandbox.json("executions list")[0]["id"].as_str().unwrap().to_owned();
    for words in [format!("history --execution {execution}"), "history --workflow deploy".to_owned()] {
        let events = sandbox.json(&words);
        let kinds: Vec<_> = events.as_array().unwrap().iter().map(|event| event["kind"].clone()).collect();
        assert_eq!(kinds, ["added", "started", "succeeded"], "{words}");
        assert_eq!(events[0]["execution"], execution.as_str());
    }
}

#[test]
fn a_history_that_does_not_exist_is_explained() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["mail"]);
    let unknown = sandbox.run("history --task 00000000-0000-7000-8000-000000000001");
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(unknown.stderr.contains("there is no task 00000000"), "{unknown:?}");
    let unknown = sandbox.run("history --task deadbeef");
    assert!(unknown.code == 1 && unknown.stderr.contains("hint: list them with: "), "{unknown:?}");
    // A task that is no execution has no history as one.
    let wrong = sandbox.run(&format!("history --execution {id}"));
    assert!(wrong.code == 1 && wrong.stderr.contains("execution"), "{wrong:?}");
    let empty = sandbox.run("history --queue mial");
    assert_eq!((empty.code, empty.stdout.as_str()), (0, ""));
    assert_eq!(empty.stderr, "the queue 'mial' has never had a task; did you mean 'mail'?\n");
    assert_eq!(sandbox.ok("history --queue mial --json"), "[]\n");
}

#[test]
fn selections_that_exclude_each_other_are_refused() {
    let sandbox = Sandbox::new();
    for words in [
        "watch a --queue mail",
        "watch --prefix a --tasks",
        "watch --queue mail --workflow deploy",
        "watch --queue mail --tasks",
        "history a --queue mail",
        "history --queue mail --task 01a1e21e",
        "history --task 01a1e21e --execution 01a1e21e",
        "history a --execution 01a1e21e",
    ] {
        let ran = sandbox.run(words);
        assert!(ran.code == 64 && ran.stderr.contains("cannot be used with"), "{words}: {ran:?}");
    }
    for words in [["watch", "--queue", ""], ["history", "--queue", "a\nb"], ["watch", "--workflow", " "]] {
        let ran = sandbox.run_words(&words);
        assert!(ran.code == 64 && ran.stdout.is_empty(), "{words:?}: {ran:?}");
    }
}
