//! What happened, and what happens.

use std::io::{BufRead, BufReader};

use serde_json::Value;

use super::support::{Bench, shape};

fn some_history() -> Bench {
    let bench = Bench::new();
    let held = bench.hold("a --holder ada");
    bench.hold("b --holder bob --shared");
    bench.ok(&format!("locks renew a {}", held.with));
    bench.ok(&format!("locks release a {}", held.with));
    bench.hold("a --holder carol");
    bench
}

#[test]
fn history_is_a_table_newest_last() {
    let bench = some_history();
    insta::assert_snapshot!(bench.tidy(&bench.ok("history a")), @"
    TIME  EVENT  HOLDER  TOKEN  DETAILS
    [TIME]  acquired  ada  [TOKEN]
    [TIME]  released  ada  [TOKEN]  held [AGE], renewed 1 time
    [TIME]  acquired  carol  [TOKEN]
    ");
    insta::assert_snapshot!(bench.tidy(&bench.ok("history --limit 2")), @"
    TIME  EVENT  LOCK  HOLDER  TOKEN  DETAILS
    [TIME]  released  a  ada  [TOKEN]  held [AGE], renewed 1 time
    [TIME]  acquired  a  carol  [TOKEN]
    ");
}

#[test]
fn history_is_an_array_for_programs() {
    let bench = some_history();
    insta::assert_snapshot!(shape(bench.json("history a --limit 2")));
    assert_eq!(bench.ok("history nothing --json"), "[]\n");
}

#[test]
fn no_history_is_empty_and_says_so() {
    let bench = Bench::new();
    let ran = bench.run("history");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert_eq!(ran.stderr, "nothing is known to have happened\n");
}

#[test]
fn a_long_history_is_whole() {
    let bench = Bench::new();
    bench.hold("a --ttl 1h");
    bench.ok("sweep"); // Brings what has happened to where all events are.
    let copy = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1500) \
                INSERT INTO events (seq, previous, event) SELECT seq + n, seq + n - 1, event FROM events, n; \
                UPDATE locks SET last_event = (SELECT max(seq) FROM events);";
    rusqlite::Connection::open(bench.path().join("store.db")).unwrap().execute_batch(copy).unwrap();
    for name in ["", "a"] {
        let count =
            |limit: u32| bench.json(&format!("history {name} --limit {limit}")).as_array().unwrap().len();
        assert_eq!(count(1200), 1200);
        assert_eq!(count(5000), 1501);
    }
}

/// Starts to watch, does something, and reads so many lines.
fn watched(bench: &Bench, words: &str, lines: usize) -> Vec<String> {
    let mut watcher = bench.start(words);
    // It says so once it knows from where to go on.
    let mut talk = BufReader::new(watcher.stderr.take().unwrap());
    let mut line = String::new();
    talk.read_line(&mut line).unwrap();
    assert_eq!(line, "watching; press Ctrl-C to stop\n");
    let held = bench.hold("a --holder ada");
    bench.hold("b --holder bob");
    bench.ok(&format!("locks release a {}", held.with));
    let seen = BufReader::new(watcher.stdout.take().unwrap()).lines().take(lines);
    let seen = seen.map(|line| bench.tidy(&line.unwrap())).collect();
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    seen
}

#[test]
fn watching_begins_now() {
    let bench = Bench::new();
    bench.hold("before");
    insta::assert_snapshot!(watched(&bench, "watch", 3).join("\n"), @"
    [TIME]  acquired  a  ada  token [TOKEN]
    [TIME]  acquired  b  bob  token [TOKEN]
    [TIME]  released  a  ada  token [TOKEN]  held [AGE]
    ");
}

#[test]
fn watching_can_be_narrowed() {
    let kinds = |words| {
        let lines = watched(&Bench::new(), words, 2);
        lines
            .iter()
            .map(|line| line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds("watch a"), ["acquired a", "released a"]);
    assert_eq!(kinds("watch --prefix a"), ["acquired a", "released a"]);
}

#[test]
fn watching_is_a_line_of_json_per_event_for_programs() {
    let bench = Bench::new();
    let mut watcher = bench.start("watch --json");
    let mut seen = BufReader::new(watcher.stdout.take().unwrap());
    // It says nothing before the first event, so something happens until it does.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut line = String::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let held = bench.hold("a --holder ada");
                bench.ok(&format!("locks release a {}", held.with));
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
