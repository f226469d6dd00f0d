//! Histories in which the engine was disturbed: what it may have lost is no violation, and anything
//! else is.

use leasehold_torture::history::{Event, Mode};
use leasehold_torture::{Checked, Property, check};

use crate::checkers::history;

fn engine_fault(millis: u64, loses: bool) -> Event {
    Event::EngineFault { fault: "promotion".into(), millis, loses, loses_parts: false }
}

/// Returns the violated properties and the number of excused findings.
#[track_caller]
fn judged(events: impl IntoIterator<Item = (u64, u32, Event)>) -> (Vec<Property>, u64) {
    let checked = check(&history(events));
    let violated = checked.iter().filter(|checked| !checked.violations.is_empty());
    let excused = checked.iter().map(|checked: &Checked| checked.excused).sum();
    (violated.map(|checked| checked.property).collect(), excused)
}

fn held(process: u32, from: u64, token: u64) -> [(u64, u32, Event); 2] {
    let (lease, until) = (format!("lease-{process}"), (from + 1000) * 1000);
    [
        (from - 1, process, Event::Acquire { op: 1, lock: "l".into(), mode: Mode::Exclusive }),
        (from, process, Event::Granted { op: 1, lease, token, until }),
    ]
}

#[test]
fn only_leases_from_before_a_loss_may_overlap_with_later_ones() {
    let overlap = |from: u64, loses: bool| {
        let fault = [(100, 0, engine_fault(200, loses))];
        held(1, from - 200, 5).into_iter().chain(held(2, from, 6)).chain(fault)
    };
    assert_eq!(judged(overlap(400, true)), (vec![], 1));
    assert_eq!(judged(overlap(400, false)), (vec![Property::Exclusion], 0));
    // One TTL after the fault, every lease is one that the engine has granted or renewed since.
    assert_eq!(judged(overlap(1299, true)), (vec![], 1));
    assert_eq!(judged(overlap(1300, true)), (vec![Property::Exclusion], 0));
}

#[test]
fn tokens_rise_whatever_the_engine_loses() {
    let fault = [(100, 0, engine_fault(200, true))];
    let falls = held(1, 50, 6).into_iter().chain(held(2, 400, 5)).chain(fault);
    assert_eq!(judged(falls), (vec![Property::Fencing], 1));
}

#[test]
fn responses_of_leases_that_overlap_after_a_loss_may_cross() {
    let crossing = |sent: u64, loses: bool| {
        let mut late = held(2, 400, 5);
        late[0].0 = sent;
        held(1, 350, 6).into_iter().chain(late).chain([(100, 0, engine_fault(200, loses))])
    };
    assert_eq!(judged(crossing(349, true)), (vec![], 2));
    assert_eq!(judged(crossing(351, true)), (vec![Property::Fencing], 1));
    assert_eq!(judged(crossing(349, false)), (vec![Property::Exclusion, Property::Fencing], 0));
}

#[test]
fn a_lost_settlement_does_not_excuse_another_attempt_with_an_older_token() {
    let attempts = |tokens: [u64; 2], until: u64| {
        let attempt = |op: u32, token: u64, until: u64| {
            let until = until * 1000;
            Event::Attempt { op, task: "t".into(), lock: None, token, until }
        };
        [
            (100, 0, engine_fault(1000, true)),
            (150, 1, attempt(1, tokens[0], 1140)),
            (200, 1, Event::Ended { op: 1, lost: false }),
            (1300, 1, attempt(2, tokens[1], until)),
            (1400, 1, Event::Ended { op: 2, lost: false }),
        ]
    };
    assert_eq!(judged(attempts([5, 6], 2290)).0, []);
    assert_eq!(judged(attempts([6, 5], 2290)).0, [Property::Fencing]);
    assert_eq!(judged(attempts([5, 5], 2290)).0, [Property::Fencing]);
}

#[test]
fn only_tasks_from_before_a_loss_may_be_missing() {
    let task = |sent: u64, state: &str, loses: bool| {
        let (task, state, terminal) = ("t".to_owned(), state.to_owned(), false);
        [
            (sent, 1, Event::Enqueue { op: 1, queue: "q".into(), key: None }),
            (sent + 10, 1, Event::Enqueued { op: 1, task: task.clone(), duplicate: false }),
            (100, 0, engine_fault(200, loses)),
            (900, 0, Event::Final { task, state, token: 0, terminal }),
        ]
    };
    assert_eq!(judged(task(299, "missing", true)), (vec![], 1));
    assert_eq!(judged(task(299, "missing", false)), (vec![Property::Tasks], 0));
    assert_eq!(judged(task(300, "missing", true)), (vec![Property::Tasks], 0));
    // A task that the engine has kept has to end.
    assert_eq!(judged(task(50, "running", true)), (vec![Property::Tasks], 0));
}

#[test]
fn a_key_may_have_another_task_after_a_loss_and_one_only() {
    let keyed = |sent: [u64; 2]| {
        let task = |number: usize| {
            let (op, key) = (u32::try_from(number + 1).unwrap(), Some("k".to_owned()));
            let task = format!("t{number}");
            let end =
                Event::Final { task: task.clone(), state: "succeeded".into(), token: 1, terminal: true };
            [
                (sent[number], 1, Event::Enqueue { op, queue: "q".into(), key }),
                (sent[number] + 1, 1, Event::Enqueued { op, task, duplicate: false }),
                (sent[number] + 2, 0, end),
            ]
        };
        task(0).into_iter().chain(task(1)).chain([(100, 0, engine_fault(200, true))])
    };
    assert_eq!(judged(keyed([50, 400])), (vec![], 1));
    assert_eq!(judged(keyed([400, 500])), (vec![Property::Tasks], 0));
}

#[test]
fn a_fault_of_the_engine_excuses_every_waiter_that_lost_its_position() {
    let passed = |fault: u64| {
        let waiter = |process, requested, granted, token| {
            let lease = format!("lease-{process}");
            [
                (requested, process, Event::Acquire { op: 1, lock: "l".into(), mode: Mode::Exclusive }),
                (requested + 1, process, Event::Queued { op: 1 }),
                (granted, process, Event::Granted { op: 1, lease, token, until: (granted + 100) * 1000 }),
                (granted + 1, process, Event::Ended { op: 1, lost: false }),
            ]
        };
        let later = waiter(2, 20_100, 20_200, 5);
        later.into_iter().chain(waiter(1, 20_000, 20_300, 6)).chain([(fault, 0, engine_fault(100, false))])
    };
    assert_eq!(judged(passed(20_050)).0, []);
    // Long before, and long after.
    assert_eq!(judged(passed(10_000)).0, [Property::FairQueue]);
    assert_eq!(judged(passed(30_000)).0, [Property::FairQueue]);
}

/// An engine that evicts keys may keep a task and lose its place in the queue, and so block later tasks of its lock.
#[test]
fn no_task_has_to_end_once_parts_of_the_data_are_lost() {
    let pending = |sent: u64, loses_parts: bool| {
        let (task, state) = ("t".to_owned(), "pending".to_owned());
        [
            (100, 0, Event::EngineFault { fault: "eviction".into(), millis: 200, loses: true, loses_parts }),
            (sent, 1, Event::Enqueue { op: 1, queue: "q".into(), key: None }),
            (sent + 1, 1, Event::Enqueued { op: 1, task: task.clone(), duplicate: false }),
            (5000, 0, Event::Final { task, state, token: 0, terminal: false }),
            (5001, 0, Event::Complete),
        ]
    };
    assert_eq!(judged(pending(150, true)), (vec![], 1));
    assert_eq!(judged(pending(400, true)), (vec![], 1));
    assert_eq!(judged(pending(150, false)).0, [Property::Tasks]);
}
