//! Many processes, one lock.

use std::collections::HashSet;

use super::support::{Ran, Sandbox};

const PROCESSES: usize = 24;

#[test]
fn of_many_concurrent_requests_one_gets_the_lock() {
    let sandbox = Sandbox::new();
    let children: Vec<_> = (0..PROCESSES).map(|_| sandbox.start("locks acquire a --ttl 1h --json")).collect();
    let ran: Vec<_> =
        children.into_iter().map(|child| Ran::from(child.wait_with_output().unwrap())).collect();
    let won = ran.iter().filter(|ran| ran.code == 0).count();
    let lost = ran.iter().filter(|ran| ran.code == 75 && ran.stdout.is_empty()).count();
    assert_eq!((won, lost), (1, PROCESSES - 1), "{ran:?}");
}

#[test]
fn every_waiter_gets_the_lock_once_with_its_own_token() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --ttl 1h");
    // These leases are neither renewed nor released: each expires, and the next waiter gets the lock.
    let children: Vec<_> =
        (0..8).map(|_| sandbox.start("locks acquire a --ttl 100ms --wait forever --json")).collect();
    sandbox.until("a", |status| status["waiters"].as_array().unwrap().len() == 8);
    sandbox.ok(&format!("locks release a {}", held.with));
    let mut tokens = HashSet::new();
    for child in children {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
        let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert!(tokens.insert(value["token"].as_u64().unwrap()));
    }
    assert_eq!(tokens.len(), 8);
}

/// Each command writes a line when it starts and one when it ends. No other command may write in
/// between.
#[test]
fn many_commands_never_overlap_and_their_tokens_rise_in_order() {
    let sandbox = Sandbox::new();
    let script = "echo in $LEASEHOLD_TOKEN >> log; sleep 0.01; echo out $LEASEHOLD_TOKEN >> log";
    let words = ["run", "a", "--wait", "forever", "--", "sh", "-c", script];
    let children: Vec<_> = (0..PROCESSES).map(|_| sandbox.command(words).spawn().unwrap()).collect();
    for child in children {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let log = std::fs::read_to_string(sandbox.path().join("log")).unwrap();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 2 * PROCESSES);
    let tokens: Vec<u64> = lines
        .chunks(2)
        .map(|pair| {
            let token = pair[0].strip_prefix("in ").unwrap();
            assert_eq!(pair[1].strip_prefix("out "), Some(token), "another command ran in between: {log}");
            token.parse().unwrap()
        })
        .collect();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}
