//! `tasks logs`, `executions logs` and `tasks why`.

use serde_json::{Value, json};

use crate::support::{Sandbox, eventually};

#[test]
fn the_output_of_every_attempt_is_kept_by_stream() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--backoff", "1ms", "--max-attempts", "2"]);
    let worker =
        sandbox.start_worker("a", "echo out $LEASEHOLD_ATTEMPT; echo err $LEASEHOLD_ATTEMPT >&2; exit 9");
    sandbox.until_task(&id, "failed");
    drop(worker);
    let logs = sandbox.run_words(&["tasks", "logs", &id]);
    assert_eq!((logs.code, logs.stdout.as_str()), (0, "out 1\nout 2\n"));
    let messages: Vec<_> = logs.stderr.lines().filter(|line| line.starts_with("err ")).collect();
    assert_eq!(messages, ["err 1", "err 2"]);
    assert!(logs.stderr.contains("attempt 1, "), "{}", logs.stderr);
    let second = sandbox.run_words(&["tasks", "logs", &id, "--attempt", "2"]);
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("out 2\n", "err 2\n"));
    let json: Value =
        serde_json::from_str(&sandbox.run_words(&["--json", "tasks", "logs", &id]).stdout).unwrap();
    assert_eq!((&json[1]["attempt"], &json[1]["ended"]), (&json!(2), &json!(true)));
    assert_eq!(json[1]["lines"].as_array().unwrap().len(), 2);
}

#[test]
fn the_last_part_of_the_output_is_kept() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    sandbox.run_words(&[
        "tasks",
        "work",
        "a",
        "--until-empty",
        "--keep-output",
        "1KiB",
        "--",
        "seq",
        "100000",
    ]);
    let logs = sandbox.run_words(&["tasks", "logs", &id]);
    assert!(logs.stdout.ends_with("\n99999\n100000\n") && logs.stdout.len() <= 1025, "{}", logs.stdout);
    assert!(logs.stderr.contains("earlier lines were not kept"), "{}", logs.stderr);
    let id = sandbox.add(&["a"]);
    sandbox.run_words(&["tasks", "work", "a", "--until-empty", "--keep-output", "0", "--", "seq", "10"]);
    let logs = sandbox.run_words(&["tasks", "logs", &id]);
    assert_eq!((logs.code, logs.stdout.as_str()), (0, ""));
    assert!(logs.stderr.contains("no output was kept"), "{}", logs.stderr);
    for size in ["2MiB", "-1", "64 KiB", "x"] {
        let ran = sandbox.run_words(&["tasks", "work", "a", &format!("--keep-output={size}"), "--", "true"]);
        assert!(ran.code == 64 && ran.stderr.contains("64KiB"), "{size}: {ran:?}");
    }
}

#[test]
fn the_output_of_a_running_task_is_followed_to_its_end() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a"]);
    let worker =
        sandbox.start_worker("a", "echo first; until [ -e $SANDBOX/go ]; do sleep 0.05; done; echo last");
    let logs = || sandbox.run_words(&["tasks", "logs", &id]).stdout;
    eventually("the first line is kept while the command runs", || logs() == "first\n");
    let follow = sandbox.start(&format!("tasks logs {id} --follow"));
    std::fs::write(sandbox.path().join("go"), "").unwrap();
    let followed = follow.wait_with_output().unwrap();
    drop(worker);
    assert_eq!(String::from_utf8_lossy(&followed.stdout), "first\nlast\n");
}

#[test]
fn the_output_of_an_execution_is_kept() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_words(&["--json", "workflows", "run", "deploy", "--", "sh", "-c", "echo released"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let list: Value =
        serde_json::from_str(&sandbox.run_words(&["--json", "executions", "list"]).stdout).unwrap();
    let id = list[0]["id"].as_str().unwrap_or_else(|| panic!("{list}")).to_owned();
    assert_eq!(sandbox.run_words(&["executions", "logs", &id]).stdout, "released\n");
}

#[test]
fn a_task_that_does_not_run_is_explained() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["mail", "--delay", "1h"]);
    let why = sandbox.run_words(&["tasks", "why", &id]);
    assert_eq!(why.code, 0, "{why:?}");
    assert!(
        why.stdout.starts_with(&format!("Task {id} of queue 'mail' is scheduled.\nIt is due at ")),
        "{why:?}"
    );
    assert!(why.stdout.contains("No worker leases tasks from queue 'mail'."), "{why:?}");
    sandbox.run_words(&["queues", "pause", "mail", "--reason", "migration"]);
    let json: Value =
        serde_json::from_str(&sandbox.run_words(&["--json", "tasks", "why", &id]).stdout).unwrap();
    let codes: Vec<_> = json["reasons"].as_array().unwrap().iter().map(|one| one["code"].clone()).collect();
    assert_eq!(codes, ["not_due", "queue_paused", "no_worker"]);
    let unknown = sandbox.run_words(&["tasks", "why", "00000000-0000-0000-0000-000000000000"]);
    assert_ne!(unknown.code, 0, "{unknown:?}");
}
