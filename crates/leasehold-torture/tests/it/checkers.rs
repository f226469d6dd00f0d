//! Histories with one violation each, and the same histories without it.

use leasehold_torture::history::{Event, FORMAT, Header, Mode, Record};
use leasehold_torture::{History, Property, check};

pub(crate) fn header() -> Header {
    Header {
        format: FORMAT,
        store: "memory:".into(),
        engine: "memory".into(),
        seed: 1,
        ttl_millis: 1000,
        workers: 2,
        proxied: true,
        queues: true,
        tasks: true,
    }
}

/// Builds a history from events, each with its time in milliseconds and its process.
pub(crate) fn history(events: impl IntoIterator<Item = (u64, u32, Event)>) -> History {
    let mut records: Vec<Record> = events
        .into_iter()
        .map(|(millis, process, event)| Record { at: millis * 1000, process, event })
        .collect();
    let at = records.iter().map(|record| record.at).max().unwrap_or_default();
    records.push(Record { at, process: 0, event: Event::Complete });
    History::new(header(), records)
}

fn acquire(mode: Mode) -> Event {
    Event::Acquire { op: 1, lock: "l".into(), mode }
}

fn granted(process: u32, token: u64, until_millis: u64) -> Event {
    Event::Granted { op: 1, lease: format!("lease-{process}"), token, until: until_millis * 1000 }
}

fn fault(worker: u32, fault: &str, millis: u64) -> Event {
    Event::Fault { worker, fault: fault.into(), millis }
}

fn ended() -> Event {
    Event::Ended { op: 1, lost: false }
}

fn attempt(token: u64, until_millis: u64) -> Event {
    Event::Attempt { op: 1, task: "t".into(), lock: None, token, until: until_millis * 1000 }
}

fn enqueue(op: u32) -> Event {
    Event::Enqueue { op, queue: "q".into(), key: Some("k".into()) }
}

fn enqueued(op: u32, task: &str) -> Event {
    Event::Enqueued { op, task: task.into(), duplicate: false }
}

fn end(task: &str, state: &str, token: u64) -> Event {
    let terminal = !["running", "missing"].contains(&state);
    Event::Final { task: task.into(), state: state.into(), token, terminal }
}

fn sink(worker: u32, token: u64, seen: Option<u64>, value: u64) -> Event {
    Event::Sink { worker, op: 1, lock: "l".into(), token, seen, value, accepted: true }
}

/// Returns the violated properties.
#[track_caller]
fn violated(events: impl IntoIterator<Item = (u64, u32, Event)>) -> Vec<Property> {
    let checked = check(&history(events));
    let violated = checked.iter().filter(|checked| !checked.violations.is_empty());
    violated
        .map(|checked| {
            assert!(checked.violations.iter().all(|violation| !violation.excerpt.is_empty()), "{checked:?}");
            checked.property
        })
        .collect()
}

/// Two processes that hold a lock one after the other; the first one ends with `end`.
fn one_after_the_other(modes: [Mode; 2], end: (u64, u32, Event)) -> Vec<(u64, u32, Event)> {
    vec![
        (0, 1, acquire(modes[0])),
        (1, 1, granted(1, 5, 1000)),
        end,
        (2, 2, acquire(modes[1])),
        (500, 2, granted(2, 6, 1500)),
    ]
}

#[test]
fn overlapping_holders_are_found() {
    let exclusive = [Mode::Exclusive; 2];
    let late = (600, 1, ended());
    assert_eq!(violated(one_after_the_other(exclusive, late.clone())), [Property::Exclusion]);
    let modes = [Mode::Shared, Mode::Exclusive];
    assert_eq!(violated(one_after_the_other(modes, late.clone())), [Property::Exclusion]);
    let slots = [Mode::Slots(1); 2];
    assert_eq!(violated(one_after_the_other(slots, late.clone())), [Property::Exclusion]);
    for allowed in [[Mode::Shared; 2], [Mode::Slots(2); 2]] {
        assert_eq!(violated(one_after_the_other(allowed, late.clone())), []);
    }
}

#[test]
fn a_lease_ends_with_its_release_a_kill_or_force() {
    let force = Event::Force { op: 9, lock: "l".into(), token: 5 };
    for end in [(400, 1, ended()), (400, 0, fault(1, "kill", 0)), (400, 2, force)] {
        assert_eq!(violated(one_after_the_other([Mode::Exclusive; 2], end)), []);
    }
    // A stopped process still believes to hold its lease.
    let stopped = (400, 0, fault(1, "stop", 2000));
    assert_eq!(violated(one_after_the_other([Mode::Exclusive; 2], stopped)), [Property::Exclusion]);
    let of_another_lease = Event::Force { op: 9, lock: "l".into(), token: 4 };
    let forced = (400, 2, of_another_lease);
    assert_eq!(violated(one_after_the_other([Mode::Exclusive; 2], forced)), [Property::Exclusion]);
}

#[test]
fn a_renewed_lease_lasts_longer() {
    let expired = vec![
        (0, 1, acquire(Mode::Exclusive)),
        (1, 1, granted(1, 5, 1000)),
        (900, 2, acquire(Mode::Exclusive)),
        (1100, 2, granted(2, 6, 2000)),
    ];
    assert_eq!(violated(expired.clone()), []);
    let renewed = (500, 1, Event::Extended { op: 1, until: 1_500_000 });
    assert_eq!(violated([expired, vec![renewed]].concat()), [Property::Exclusion]);
}

#[test]
fn falling_and_repeated_tokens_are_found() {
    let tokens = |first, second| {
        [
            (0, 1, acquire(Mode::Exclusive)),
            (1, 1, granted(1, first, 1000)),
            (2, 1, ended()),
            (3, 2, acquire(Mode::Exclusive)),
            (4, 2, granted(2, second, 1000)),
        ]
    };
    assert_eq!(violated(tokens(5, 6)), []);
    assert_eq!(violated(tokens(5, 5)), [Property::Fencing]);
    assert_eq!(violated(tokens(5, 4)), [Property::Fencing]);
}

#[test]
fn tokens_of_shared_leases_rise_from_grant_to_request() {
    let tokens = |requested, second| {
        [
            (0, 1, acquire(Mode::Shared)),
            (5, 1, granted(1, 5, 1000)),
            (requested, 2, acquire(Mode::Shared)),
            (10, 2, granted(2, second, 1000)),
        ]
    };
    assert_eq!(violated(tokens(6, 4)), [Property::Fencing]);
    // The two requests were on their way at the same time.
    assert_eq!(violated(tokens(4, 4)), []);
}

#[test]
fn stale_and_lost_writes_of_the_sink_are_found() {
    let good = [(0, 0, sink(1, 5, None, 0)), (1, 0, sink(1, 5, Some(0), 1)), (2, 0, sink(2, 6, Some(1), 2))];
    assert_eq!(violated(good), []);
    let stale = [(0, 0, sink(1, 6, None, 0)), (1, 0, sink(2, 5, None, 0))];
    let excerpt = [(0, 1, acquire(Mode::Exclusive)), (0, 2, acquire(Mode::Exclusive))];
    assert_eq!(violated(excerpt.clone().into_iter().chain(stale)), [Property::Fencing]);
    let lost = [(0, 0, sink(1, 5, Some(0), 1)), (1, 0, sink(2, 6, Some(0), 1))];
    assert_eq!(violated(excerpt.into_iter().chain(lost)), [Property::Fencing]);
}

#[test]
fn a_waiter_that_is_passed_is_found() {
    let queue = |disturbed: Option<(u64, u32, Event)>| {
        let events = [
            (0, 1, acquire(Mode::Exclusive)),
            (1, 1, Event::Queued { op: 1 }),
            (20_000, 2, acquire(Mode::Exclusive)),
            (20_010, 2, granted(2, 5, 20_500)),
            (20_020, 2, ended()),
            (20_030, 1, granted(1, 6, 21_000)),
        ];
        events.into_iter().chain(disturbed)
    };
    assert_eq!(violated(queue(None)), [Property::FairQueue]);
    assert_eq!(violated(queue(Some((15_000, 1, Event::Stalled { millis: 900 })))), []);
    assert_eq!(violated(queue(Some((10_000, 0, fault(1, "stop", 4000))))), []);
    // A request of the waiter took longer than a quarter of the TTL.
    let slow =
        [(14_000, 1, enqueue(7)), (14_300, 1, enqueued(7, "t")), (14_400, 0, end("t", "succeeded", 1))];
    assert_eq!(violated(queue(None).chain(slow)), []);
    // The waiter had been granted the lock, and its lease was ended by force before it knew.
    let force = |token| (10_000, 3, Event::Force { op: 9, lock: "l".into(), token });
    assert_eq!(violated(queue(Some(force(4)))), []);
    assert_eq!(violated(queue(Some(force(5)))), [Property::FairQueue]);
    // The token of that lease is also one of another lock.
    let other = Event::Acquire { op: 1, lock: "m".into(), mode: Mode::Exclusive };
    let other = [(9_000, 4, other), (9_010, 4, granted(4, 4, 9_500)), (9_020, 4, ended())];
    assert_eq!(violated(queue(Some(force(4))).chain(other)), []);
    // A fault of another process is no excuse.
    assert_eq!(violated(queue(Some((10_000, 0, fault(2, "stop", 4000))))), [Property::FairQueue]);
}

#[test]
fn two_attempts_at_once_are_found() {
    let attempts = |first_until| {
        [
            (0, 1, attempt(1, first_until)),
            (500, 2, attempt(2, 1500)),
            (501, 2, ended()),
            (600, 0, end("t", "succeeded", 2)),
        ]
    };
    assert_eq!(violated(attempts(400)), []);
    assert_eq!(violated(attempts(1000)), [Property::Tasks]);
}

#[test]
fn a_lost_task_and_a_task_that_does_not_end_are_found() {
    let tasks = |state: Option<&str>| {
        let other = [(0, 1, enqueue(2)), (1, 1, enqueued(2, "u")), (9, 0, end("u", "failed", 1))];
        let task = [(0, 1, Event::Enqueue { op: 1, queue: "q".into(), key: None }), (1, 1, enqueued(1, "t"))];
        let end = state.map(|state| (9, 0, end("t", state, 1)));
        other.into_iter().chain(task).chain(end)
    };
    assert_eq!(violated(tasks(Some("succeeded"))), []);
    assert_eq!(violated(tasks(Some("running"))), [Property::Tasks]);
    assert_eq!(violated(tasks(Some("missing"))), [Property::Tasks]);
    assert_eq!(violated(tasks(None)), [Property::Tasks]);
}

#[test]
fn an_attempt_after_the_end_is_found() {
    let attempts = |token| [(0, 1, attempt(token, 10)), (1, 1, ended()), (9, 0, end("t", "succeeded", 3))];
    assert_eq!(violated(attempts(3)), []);
    assert_eq!(violated(attempts(4)), [Property::Tasks]);
}

#[test]
fn two_tasks_with_one_key_are_found() {
    let tasks = |second: &'static str, first_state: &'static str| {
        [
            (0, 1, enqueue(1)),
            (1, 1, enqueued(1, "t")),
            (2, 2, enqueue(1)),
            (3, 2, enqueued(1, second)),
            (8, 0, end("t", first_state, 1)),
            (9, 0, end("u", "succeeded", 1)),
        ]
    };
    assert_eq!(violated(tasks("t", "succeeded")), []);
    assert_eq!(violated(tasks("u", "succeeded")), [Property::Tasks]);
    // The key of a failed execution is free again.
    assert_eq!(violated(tasks("u", "failed")), []);
}

#[test]
fn a_renewal_after_a_forced_release_is_found() {
    let renewed = |until_millis: u64| {
        [
            (0, 1, acquire(Mode::Exclusive)),
            (1, 1, granted(1, 5, 1000)),
            (300, 2, Event::Force { op: 9, lock: "l".into(), token: 5 }),
            (310, 2, Event::Released { op: 9, code: None }),
            (400, 1, Event::Extended { op: 1, until: until_millis * 1000 }),
        ]
    };
    // Sent before the response to the forced release.
    assert_eq!(violated(renewed(1305)), []);
    assert_eq!(violated(renewed(1350)), [Property::Exclusion]);
}

#[test]
fn a_tick_without_a_task_or_with_two_is_found() {
    let ticks = |first: Option<&'static str>, second: &'static str, state: &'static str| {
        let tick = |tick: &str, task: Option<&str>| Event::Tick {
            schedule: "s".into(),
            tick: tick.into(),
            task: task.map(String::from),
        };
        let mut events =
            vec![(1, 0, tick("1", first)), (2, 0, tick(second, Some("u"))), (3, 0, tick("3", Some("v")))];
        events.push((4, 0, end("v", state, 1)));
        events
    };
    assert_eq!(violated(ticks(Some("t"), "2", "succeeded")), []);
    assert_eq!(violated(ticks(None, "2", "succeeded")), [Property::Tasks]);
    assert_eq!(violated(ticks(Some("t"), "1", "succeeded")), [Property::Tasks]);
    assert_eq!(violated(ticks(Some("t"), "2", "running")), [Property::Tasks]);
}

#[test]
fn the_end_of_tasks_is_not_checked_if_the_history_is_cut_off() {
    let mut history = history([(0, 1, enqueue(1)), (1, 1, enqueued(1, "t"))]);
    let violations =
        |history: &History| check(history).iter().map(|checked| checked.violations.len()).sum::<usize>();
    assert_eq!(violations(&history), 1);
    history.records.retain(|record| record.event != Event::Complete);
    assert_eq!(violations(&history), 0);
    let report = leasehold_torture::Report::of(&history);
    assert!(!report.complete && report.to_string().contains("incomplete: the run was cut off"), "{report}");
}
