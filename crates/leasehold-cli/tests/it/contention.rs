//! Many processes, one lock.

use std::collections::HashSet;

use super::support::{Bench, Ran};

const PROCESSES: usize = 24;

#[test]
fn of_many_that_ask_at_once_one_gets_it() {
    let bench = Bench::new();
    let children: Vec<_> = (0..PROCESSES).map(|_| bench.start("locks acquire a --ttl 1h --json")).collect();
    let ran: Vec<_> =
        children.into_iter().map(|child| Ran::from(child.wait_with_output().unwrap())).collect();
    let won = ran.iter().filter(|ran| ran.code == 0).count();
    let lost = ran.iter().filter(|ran| ran.code == 75 && ran.stdout.is_empty()).count();
    assert_eq!((won, lost), (1, PROCESSES - 1), "{ran:?}");
}

#[test]
fn of_many_that_wait_each_gets_it_once_with_a_token_of_its_own() {
    let bench = Bench::new();
    let held = bench.hold("a --ttl 1h");
    // Nobody renews or releases these: each ends by itself, and the next one follows.
    let children: Vec<_> =
        (0..8).map(|_| bench.start("locks acquire a --ttl 100ms --wait forever --json")).collect();
    bench.until("a", |status| status["waiters"].as_array().unwrap().len() == 8);
    bench.ok(&format!("locks release a {}", held.with));
    let mut tokens = HashSet::new();
    for child in children {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
        let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert!(tokens.insert(value["token"].as_u64().unwrap()));
    }
    assert_eq!(tokens.len(), 8);
}

/// Each writes a line when its command begins and one when it ends. In between nobody else may write.
#[test]
fn many_commands_never_overlap_and_their_tokens_rise_in_order() {
    let bench = Bench::new();
    let script = "echo in $LEASEHOLD_TOKEN >> log; sleep 0.01; echo out $LEASEHOLD_TOKEN >> log";
    let words = ["run", "a", "--wait", "forever", "--", "sh", "-c", script];
    let children: Vec<_> = (0..PROCESSES).map(|_| bench.command(words).spawn().unwrap()).collect();
    for child in children {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let log = std::fs::read_to_string(bench.path().join("log")).unwrap();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 2 * PROCESSES);
    let tokens: Vec<u64> = lines
        .chunks(2)
        .map(|pair| {
            let token = pair[0].strip_prefix("in ").unwrap();
            assert_eq!(pair[1].strip_prefix("out "), Some(token), "somebody came in between: {log}");
            token.parse().unwrap()
        })
        .collect();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}
