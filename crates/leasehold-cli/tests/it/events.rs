//! `history` and `watch`.

use std::io::{BufRead, BufReader};

use serde_json::Value;

use super::support::{Sandbox, shape};

fn some_history() -> Sandbox {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    sandbox.hold("b --holder bob --shared");
    sandbox.ok(&format!("locks renew a {}", held.with));
    sandbox.ok(&format!("locks release a {}", held.with));
    sandbox.hold("a --holder carol");
    sandbox
}

#[test]
fn history_is_a_table_newest_last() {
    let sandbox = some_history();
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok("history a")), @"
    TIME  EVENT  HOLDER  TOKEN  DETAILS
    [TIME]  acquired  ada  [TOKEN]
    [TIME]  released  ada  [TOKEN]  held [AGE], renewed 1 time
    [TIME]  acquired  carol  [TOKEN]
    ");
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok("history --limit 2")), @"
    TIME  EVENT  LOCK  HOLDER  TOKEN  DETAILS
    [TIME]  released  a  ada  [TOKEN]  held [AGE], renewed 1 time
    [TIME]  acquired  a  carol  [TOKEN]
    ");
}

#[test]
fn history_is_an_array_for_programs() {
    let sandbox = some_history();
    insta::assert_snapshot!(shape(sandbox.json("history a --limit 2")));
    assert_eq!(sandbox.ok("history nothing --json"), "[]\n");
}

#[test]
fn no_history_is_empty_and_says_so() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("history");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert_eq!(ran.stderr, "no events are recorded\n");
}

#[test]
fn a_long_history_is_whole() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --ttl 1h");
    sandbox.ok("sweep"); // Moves the inline events to the events table.
    let copy = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1500) \
                INSERT INTO leasehold_events (seq, previous, event) \
                SELECT seq + n, seq + n - 1, event FROM leasehold_events, n; \
                UPDATE leasehold_locks SET last_event = (SELECT max(seq) FROM leasehold_events);";
    rusqlite::Connection::open(sandbox.path().join("store.db")).unwrap().execute_batch(copy).unwrap();
    for name in ["", "a"] {
        let count =
            |limit: u32| sandbox.json(&format!("history {name} --limit {limit}")).as_array().unwrap().len();
        assert_eq!(count(1200), 1200);
        assert_eq!(count(5000), 1501);
    }
}

/// Starts `watch`, causes events, and reads this number of lines.
fn watched(sandbox: &Sandbox, words: &str, lines: usize) -> Vec<String> {
    let mut watcher = sandbox.start(words);
    // The message is printed once the start position is known.
    let mut talk = BufReader::new(watcher.stderr.take().unwrap());
    let mut line = String::new();
    talk.read_line(&mut line).unwrap();
    assert_eq!(line, "watching; press Ctrl-C to stop\n");
    let held = sandbox.hold("a --holder ada");
    sandbox.hold("b --holder bob");
    sandbox.ok(&format!("locks release a {}", held.with));
    let seen = BufReader::new(watcher.stdout.take().unwrap()).lines().take(lines);
    let seen = seen.map(|line| sandbox.tidy(&line.unwrap())).collect();
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    seen
}

#[test]
fn watch_starts_with_new_events() {
    let sandbox = Sandbox::new();
    sandbox.hold("before");
    insta::assert_snapshot!(watched(&sandbox, "watch", 3).join("\n"), @"
    [TIME]  acquired  a  ada  token [TOKEN]
    [TIME]  acquired  b  bob  token [TOKEN]
    [TIME]  released  a  ada  token [TOKEN]  held [AGE]
    ");
}

#[test]
fn watch_can_be_filtered() {
    let kinds = |words| {
        let lines = watched(&Sandbox::new(), words, 2);
        lines
            .iter()
            .map(|line| line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds("watch a"), ["acquired a", "released a"]);
    assert_eq!(kinds("watch --prefix a"), ["acquired a", "released a"]);
}

#[test]
fn watch_prints_a_line_of_json_per_event() {
    let sandbox = Sandbox::new();
    let mut watcher = sandbox.start("watch --json");
    let mut seen = BufReader::new(watcher.stdout.take().unwrap());
    // With JSON nothing is printed before the first event, so events are caused until one is printed.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut line = String::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let held = sandbox.hold("a --holder ada");
                sandbox.ok(&format!("locks release a {}", held.with));
            }
        });
        seen.read_line(&mut line).unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["lock"], "a");
    assert_eq!(event["holder"], "ada");
    assert!(["acquired", "released"].contains(&event["kind"].as_str().unwrap()));
    watcher.kill().unwrap();
    watcher.wait().unwrap();
}
