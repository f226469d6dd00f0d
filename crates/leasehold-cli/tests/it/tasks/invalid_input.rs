//! Invalid input: a clear message, exit code 64, and no change.

use crate::input::all_refused;
use crate::support::Sandbox;

#[test]
fn invalid_tasks() {
    insta::assert_snapshot!(all_refused(&[
        &["tasks", "add", ""],
        &["tasks", "add", "q", "--payload", "{oops"],
        &["tasks", "add", "q", "--payload", "hello"],
        &["tasks", "add", "q", "--payload", ""],
        &["tasks", "add", "q", "--payload", "@"],
        &["tasks", "add", "q", "--priority", "5000"],
        &["tasks", "add", "q", "--priority", "high"],
        &["tasks", "add", "q", "--run-at", "tomorrow"],
        &["tasks", "add", "q", "--run-at", "2030-13-01T00:00:00Z"],
        &["tasks", "add", "q", "--run-at", "2030-01-01T00:00:00Z", "--delay", "1s"],
        &["tasks", "add", "q", "--delay", "5x"],
        &["tasks", "add", "q", "--delay", "-5s"],
        &["tasks", "add", "q", "--max-attempts", "0"],
        &["tasks", "add", "q", "--max-attempts", "1001"],
        &["tasks", "add", "q", "--backoff", "0s"],
        &["tasks", "add", "q", "--key", ""],
        &["tasks", "add", "q", "--lock", "a\nb"],
        &["tasks", "add", "q", "--lines", "f", "--key", "k"],
        &["tasks", "list", "--state", "done"],
        &["tasks", "list", "--limit", "0"],
        &["tasks", "list", "--limit", "5", "--all"],
        &["tasks", "list", "--worker", "ada"],
        &["tasks", "show", "7"],
        &["tasks", "retry"],
        &["tasks", "cancel", "--queue", "q", "--state", "failed"],
        &["tasks", "cancel"],
        &["tasks", "update", "01a1deb1-1ca7-7312-a891-f34f7801532f", "--version", "1"],
        &["tasks", "update", "01a1deb1-1ca7-7312-a891-f34f7801532f", "--priority", "1"],
        &["tasks", "purge", "--yes"],
        &["tasks", "purge", "--older-than", "1d", "--state", "running", "--yes"],
        &["queues", "pause"],
    ]));
}

#[test]
fn invalid_workers() {
    insta::assert_snapshot!(all_refused(&[
        &["tasks", "work", "--", "true"],
        &["tasks", "work", "q"],
        &["tasks", "work", "q", "--slots", "0", "--", "true"],
        &["tasks", "work", "q", "--ttl", "0", "--", "true"],
        &["tasks", "work", "q", "--ttl", "500ms", "--", "true"],
        &["tasks", "work", "q", "--ttl", "10s", "--kill-after", "6s", "--", "true"],
        &["tasks", "work", "q", "--once", "--until-empty", "--", "true"],
        &["tasks", "work", "q", "--grace", "x", "--", "true"],
    ]));
    let sandbox = Sandbox::new();
    let missing = sandbox.run("tasks work q -- no-such-command-here");
    assert_eq!(missing.code, 127, "{missing:?}");
    assert!(!sandbox.path().join("store.db").exists());
    let folder = sandbox.run("tasks work q -- /");
    assert_eq!(folder.code, 126, "{folder:?}");
}

#[test]
fn a_wrong_address_is_reported_first() {
    let sandbox = Sandbox::new();
    for words in ["tasks list", "tasks add q", "queues list", "workers", "tasks work q -- true"] {
        let ran = sandbox.run(&format!("--store mysql://h/db {words}"));
        assert_eq!(ran.code, 78, "{words}: {ran:?}");
    }
}

#[test]
fn a_task_in_memory_is_refused() {
    let sandbox = Sandbox::new();
    for words in ["tasks add q", "tasks add q --lines /dev/null", "tasks work q -- true"] {
        let ran = sandbox.run(&format!("--store memory: {words}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (78, ""), "{words}: {ran:?}");
        assert!(ran.stderr.contains("use a persistent store"), "{words}: {ran:?}");
    }
}
