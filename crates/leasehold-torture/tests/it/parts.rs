//! A long history is checked in parts: the result is the same, and the memory is bounded.

use leasehold_torture::history::{Event, Mode, Record};
use leasehold_torture::{Checker, Report};

use super::checkers::header;

/// Violations that are put into the long history.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A holder ends late, a token falls, a write and a task are lost, a key has two tasks.
    EveryTenThousandth,
}

/// Returns the records of processes that hold a lock one after the other and run tasks with keys,
/// for about half an hour.
fn long_history(broken: Broken) -> Vec<Record> {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut records = Vec::new();
    let mut now = 1_000_000;
    for number in 0..20_000_u32 {
        let (process, op, token) = (1 + number % 4, 2 * number + 1, u64::from(number) + 10);
        let is_broken = broken == Broken::EveryTenThousandth && number % 10_000 == 9_999;
        let mut add = |at: u64, process, event| records.push(Record { at, process, event });
        let requested = now - 50_000;
        now += rng.u64(20_000..100_000);
        let granted = now;
        add(requested, process, Event::Acquire { op, lock: "l".into(), mode: Mode::Exclusive });
        add(requested + 10, process, Event::Queued { op });
        let token = if is_broken { u64::from(number / 10_000) + 1 } else { token };
        add(
            granted,
            process,
            Event::Granted { op, lease: op.to_string(), token, until: granted + 1_000_000 },
        );
        let sink = |seen, value| Event::Sink {
            worker: process,
            op,
            lock: "l".into(),
            token: u64::from(number),
            seen,
            value,
            accepted: true,
        };
        let seen = u64::from(number) - u64::from(is_broken);
        add(granted + 10, 0, sink(None, seen));
        add(granted + 20, 0, sink(Some(seen), u64::from(number) + 1));
        now += 20_000;
        let late = if is_broken { 300_000 } else { 0 };
        add(now - 10 + late, process, Event::Ended { op, lost: false });
        add(now + 1000 + late, process, Event::Released { op, code: None });
        let (op, task) = (op + 1, format!("task-{number}"));
        add(now, process, Event::Enqueue { op, queue: "q".into(), key: Some(format!("key-{}", number / 2)) });
        // Two processes use one key; it belongs to the first task.
        let id = if is_broken { task.clone() } else { format!("task-{}", number / 2 * 2) };
        let duplicate = id != task;
        add(now + 10, process, Event::Enqueued { op, task: id.clone(), duplicate });
        let state = if is_broken { "missing" } else { "succeeded" };
        add(now + 500_000, 0, Event::Final { task: id, state: state.into(), token: 1, terminal: !is_broken });
    }
    records.sort_by_key(|record| record.at);
    let at = records.last().unwrap().at;
    records.push(Record { at, process: 0, event: Event::Complete });
    records
}

/// Checks the records in parts, and returns the largest number of records that were held.
fn check_in_parts(records: &[Record], part: usize) -> (Report, usize) {
    let mut checker = Checker::with_parts(header(), part);
    let mut most = 0;
    for record in records {
        checker.push(record.clone());
        most = most.max(checker.held());
    }
    (Report::finish(checker), most)
}

#[test]
fn a_long_history_is_checked_in_parts_with_the_same_result() {
    for broken in [Broken::Nothing, Broken::EveryTenThousandth] {
        let records = long_history(broken);
        let (whole, held) = check_in_parts(&records, usize::MAX);
        assert_eq!(held, records.len());
        let (in_parts, held) = check_in_parts(&records, 2000);
        let (_, held_at_half) = check_in_parts(&records[..records.len() / 2], 2000);
        assert!(held < records.len() / 4, "{held} of {} records were held", records.len());
        assert!(held <= held_at_half * 5 / 4, "{held} records were held, and at half {held_at_half}");
        for (one, other) in whole.checked.iter().zip(&in_parts.checked) {
            assert_eq!(one.compared, other.compared, "{}", one.property);
            let messages = |violations: &[leasehold_torture::Violation]| {
                let mut messages: Vec<_> = violations.iter().map(|one| one.message.clone()).collect();
                messages.sort_unstable();
                messages
            };
            assert_eq!(messages(&one.violations), messages(&other.violations), "{}", one.property);
            let expects_violation = broken != Broken::Nothing && one.property.to_string() != "fair queue";
            assert_eq!(
                !one.violations.is_empty(),
                expects_violation,
                "{} {:#?}",
                one.property,
                one.violations
            );
        }
        assert_eq!(whole.handover.count, in_parts.handover.count);
        assert_eq!(whole.records, in_parts.records);
    }
}

/// The process of a waiter is stopped for long, and a later waiter is granted the lock first. The stop must be
/// known as long as the two are compared.
#[test]
fn a_part_keeps_the_faults_of_the_operations_that_it_keeps() {
    for variant in
        [Variant::Plain, Variant::OtherNeverEnds, Variant::ReleasesAreUnknown, Variant::WaitsForMinutes]
    {
        keeps_faults(variant);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Plain,
    /// An operation that never ends keeps the records of others for some minutes.
    OtherNeverEnds,
    /// Without their release, the two operations are kept to the end of the history.
    ReleasesAreUnknown,
    /// The waiter is granted the lock after more time than an operation keeps the records of others.
    WaitsForMinutes,
}

fn keeps_faults(variant: Variant) {
    let mut records = Vec::new();
    let mut add = |seconds: u64, process, event| {
        records.push(Record { at: seconds * 1_000_000, process, event });
    };
    let acquire = |op, lock: &str| Event::Acquire { op, lock: lock.into(), mode: Mode::Exclusive };
    let granted = |op, token, until: u64| Event::Granted {
        op,
        lease: format!("{token}"),
        token,
        until: until * 1_000_000,
    };
    if variant == Variant::OtherNeverEnds {
        add(1, 4, acquire(1, "open"));
    }
    add(100, 1, acquire(1, "l"));
    add(100, 1, Event::Queued { op: 1 });
    add(110, 0, Event::Fault { worker: 1, fault: "stop".into(), millis: 15_000 });
    add(130, 2, acquire(1, "l"));
    add(130, 2, Event::Queued { op: 1 });
    add(150, 2, granted(1, 10, 155));
    add(151, 2, Event::Ended { op: 1, lost: false });
    let is_released = variant != Variant::ReleasesAreUnknown;
    if is_released {
        add(151, 2, Event::Released { op: 1, code: None });
    }
    let at = if variant == Variant::WaitsForMinutes { 560 } else { 158 };
    add(at, 1, granted(1, 11, at + 5));
    add(at + 1, 1, Event::Ended { op: 1, lost: false });
    if is_released {
        add(at + 1, 1, Event::Released { op: 1, code: None });
    }
    for number in 0..400 {
        let (op, at) = (number + 1, 160 + u64::from(number));
        add(at, 3, acquire(op, "other"));
        add(at, 3, granted(op, 100 + u64::from(number), at + 5));
        add(at, 3, Event::Ended { op, lost: false });
        add(at, 3, Event::Released { op, code: None });
    }
    add(561, 0, Event::Complete);
    records.sort_by_key(|record| record.at);
    for part in (20..records.len()).step_by(28).chain([usize::MAX]) {
        let (report, _) = check_in_parts(&records, part);
        for checked in &report.checked {
            assert!(checked.violations.is_empty(), "{variant:?}, parts of {part}: {:#?}", checked.violations);
        }
    }
}
