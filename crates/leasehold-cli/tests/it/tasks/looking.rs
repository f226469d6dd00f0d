//! `tasks list`, `show`, `counts`, `queues list`, `workers`.

use crate::support::{Bench, shape};

#[test]
fn tasks_are_listed_newest_first_and_filtered() {
    let bench = Bench::new();
    let first = bench.add(&["mail", "--lock", "l"]);
    let second = bench.add(&["video", "--delay", "1h"]);
    let ids = |words: &str| -> Vec<String> {
        let list = bench.json(&format!("tasks list {words}"));
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
    insta::assert_snapshot!("list", bench.tidy(&bench.ok("tasks list")));
    let cut = bench.run("tasks list --limit 1");
    assert!(cut.stderr.contains("there are more"), "{cut:?}");
    let none = bench.run("tasks list --queue nothing");
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (0, "", "no such task\n"));
}

#[test]
fn a_task_is_a_page_for_people_and_an_object_for_programs() {
    let bench = Bench::new();
    let id = bench.add(&["mail", "--payload", "{\"to\":\"ada\"}", "--key", "k", "--backoff", "1ms"]);
    bench.work("mail", "printf 'no such \\033[31muser\\n' >&2; exit 65");
    bench.ok(&format!("tasks retry {id}"));
    bench.work("mail", "echo '{\"sent\": true}'");
    insta::assert_snapshot!("page", page(&bench.tidy(&bench.ok(&format!("tasks show {id}")))));
    insta::assert_snapshot!("json-page", page(&shape(bench.task(&id))));
}

/// Without who ran the test.
fn page(text: &str) -> String {
    let who = |line: &str| line.split_once("  by ").map(|(before, _)| format!("{before}  by [WHO]"));
    text.lines().map(|line| who(line).unwrap_or_else(|| line.to_owned())).collect::<Vec<_>>().join("\n")
}

#[test]
fn queues_are_counted() {
    let bench = Bench::new();
    assert_eq!(
        bench.run("queues list").stderr,
        "there is no queue yet: it comes into being with its first task\n"
    );
    bench.add(&["mail"]);
    bench.add(&["mail", "--delay", "1h"]);
    bench.add(&["video"]);
    insta::assert_snapshot!(bench.ok("queues list"), @r"
    QUEUE  SCHEDULED  BLOCKED  PENDING  RUNNING  SUCCEEDED  FAILED  ABORTED  PAUSED
    mail   1          0        1        0        0          0       0        -
    video  0          0        1        0        0          0       0        -
    ");
    insta::assert_snapshot!("json-counts", shape(bench.json("tasks counts mail")));
    let unknown = bench.run("tasks counts post");
    assert_eq!(unknown.code, 1);
    insta::assert_snapshot!(bench.tidy(&unknown.stderr), @r"
    leasehold: there is no queue 'post'; there is 'mail', 'video'
    hint: see the queues with: leasehold queues list
    ");
}

#[test]
fn workers_are_listed_while_they_work() {
    let bench = Bench::new();
    let nobody =
        "no worker is running: a worker that has ended is not listed, one that was killed is, for an hour\n";
    assert_eq!(bench.run("workers").stderr, nobody);
    nix::unistd::mkfifo(&bench.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    bench.add(&["mail"]);
    // Heartbeats are 20 minutes apart: what changes is reported at once all the same.
    let mut working =
        bench.start_worker("mail video --slots 3 --ttl 1h", "echo 1 > $BENCH/began; cat $BENCH/pipe");
    bench.written("began");
    let mut workers = serde_json::Value::Null;
    crate::support::eventually("a busy worker", || {
        workers = bench.json("workers list");
        workers[0]["busy"] == 1
    });
    assert_eq!(workers[0]["pid"], working.0.id());
    assert_eq!(workers[0]["queues"], serde_json::json!(["mail", "video"]));
    assert_eq!((&workers[0]["slots"], &workers[0]["state"]), (&3.into(), &"alive".into()));
    let table = bench.ok("workers");
    assert!(table.starts_with("ID ") && table.contains("mail,video") && table.contains("1/3"), "{table}");
    working.signal(nix::sys::signal::Signal::SIGTERM);
    crate::support::eventually("a draining worker", || bench.json("workers")[0]["state"] == "draining");
    drop(std::fs::File::options().write(true).open(bench.path().join("pipe")).unwrap());
    assert_eq!(working.wait(), 0);
    assert_eq!(bench.run("workers").stderr, nobody, "it has said so");
}
