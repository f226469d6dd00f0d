//! `tasks list`, `show`, `counts`, `queues list`, `workers`.

use crate::support::{Sandbox, shape};

#[test]
fn tasks_are_listed_newest_first_and_filtered() {
    let sandbox = Sandbox::new();
    let first = sandbox.add(&["mail", "--lock", "l"]);
    let second = sandbox.add(&["video", "--delay", "1h"]);
    let ids = |words: &str| -> Vec<String> {
        let list = sandbox.json(&format!("tasks list {words}"));
        list.as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(""), [second.as_str(), &first]);
    for (words, expected) in [
        ("--limit 1", &second),
        ("--queue mail", &first),
        ("--state scheduled", &second),
        ("--lock l", &first),
    ] {
        assert_eq!(ids(words), [expected.as_str()], "{words}");
    }
    assert!(ids("--worker 00000000-0000-7000-8000-000000000000").is_empty());
    insta::assert_snapshot!("list", sandbox.tidy(&sandbox.ok("tasks list")));
    let cut = sandbox.run("tasks list --limit 1");
    assert!(cut.stderr.contains("there are more"), "{cut:?}");
    let none = sandbox.run("tasks list --queue nothing");
    assert_eq!(
        (none.code, none.stdout.as_str(), none.stderr.as_str()),
        (0, "", "the queue 'nothing' has never had a task\n")
    );
}

#[test]
fn a_task_is_a_page_for_people_and_an_object_for_programs() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["mail", "--payload", "{\"to\":\"ada\"}", "--key", "k", "--backoff", "1ms"]);
    sandbox.work("mail", "printf 'no such \\033[31muser\\n' >&2; exit 65");
    sandbox.ok(&format!("tasks retry {id}"));
    sandbox.work("mail", "echo '{\"sent\": true}'");
    insta::assert_snapshot!("page", page(&sandbox.tidy(&sandbox.ok(&format!("tasks show {id}")))));
    insta::assert_snapshot!("json-page", page(&shape(sandbox.task(&id))));
}

/// Replaces the user who ran the test.
fn page(text: &str) -> String {
    let who = |line: &str| line.split_once("  by ").map(|(before, _)| format!("{before}  by [WHO]"));
    text.lines().map(|line| who(line).unwrap_or_else(|| line.to_owned())).collect::<Vec<_>>().join("\n")
}

#[test]
fn queues_are_counted() {
    let sandbox = Sandbox::new();
    assert_eq!(
        sandbox.run("queues list").stderr,
        "there is no queue yet: a queue is created with its first task\n"
    );
    sandbox.add(&["mail"]);
    sandbox.add(&["mail", "--delay", "1h"]);
    sandbox.add(&["video"]);
    insta::assert_snapshot!(sandbox.ok("queues list"), @r"
    QUEUE  SCHEDULED  BLOCKED  PENDING  RUNNING  SUCCEEDED  FAILED  ABORTED  PAUSED
    mail   1          0        1        0        0          0       0        -
    video  0          0        1        0        0          0       0        -
    ");
    insta::assert_snapshot!("json-counts", shape(sandbox.json("tasks counts mail")));
    let unknown = sandbox.run("tasks counts post");
    assert_eq!(unknown.code, 1);
    insta::assert_snapshot!(sandbox.tidy(&unknown.stderr), @r"
    leasehold: there is no queue 'post'; there is 'mail', 'video'
    hint: see the queues with: leasehold queues list
    ");
}

#[test]
fn workers_are_listed_while_they_work() {
    let sandbox = Sandbox::new();
    let no_workers =
        "no worker is running: a worker that has ended is not listed, one that was killed is, for an hour\n";
    assert_eq!(sandbox.run("workers").stderr, no_workers);
    nix::unistd::mkfifo(&sandbox.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    sandbox.add(&["mail"]);
    // Heartbeats are 20 minutes apart, yet changes are reported at once.
    let mut working =
        sandbox.start_worker("mail video --slots 3 --ttl 1h", "echo 1 > $SANDBOX/began; cat $SANDBOX/pipe");
    sandbox.written("began");
    let mut workers = serde_json::Value::Null;
    crate::support::eventually("a busy worker", || {
        workers = sandbox.json("workers list");
        workers[0]["busy"] == 1
    });
    assert_eq!(workers[0]["pid"], working.0.id());
    assert_eq!(workers[0]["queues"], serde_json::json!(["mail", "video"]));
    assert_eq!((&workers[0]["slots"], &workers[0]["state"]), (&3.into(), &"alive".into()));
    let table = sandbox.ok("workers");
    assert!(table.starts_with("ID ") && table.contains("mail,video") && table.contains("1/3"), "{table}");
    working.signal(nix::sys::signal::Signal::SIGTERM);
    crate::support::eventually("a draining worker", || sandbox.json("workers")[0]["state"] == "draining");
    drop(std::fs::File::options().write(true).open(sandbox.path().join("pipe")).unwrap());
    assert_eq!(working.wait(), 0);
    assert_eq!(sandbox.run("workers").stderr, no_workers, "it has said so");
}
