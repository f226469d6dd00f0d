//! What a part of a history leaves to the next one: the records of operations that have not ended,
//! and of those that the others may still be compared with.

use std::collections::{HashMap, HashSet};

use crate::KILL;
use crate::history::{Event, Record};

/// Time for which the records of an operation are kept after its end if others have not ended, in
/// microseconds: longer than the disturbance of a fault lasts.
const MARGIN: u64 = 20_000_000;

/// Time for which the records of a key are kept, and longest time for which an operation that does
/// not end keeps the records of others, in microseconds.
const LONGEST: u64 = 300_000_000;

/// Longest time, in microseconds, by which a record may arrive later than another one with a later
/// time: its process may be stopped for two TTLs before it writes the record.
pub(super) const fn late(ttl: u64) -> u64 {
    ttl.saturating_mul(10).saturating_add(30_000_000)
}

/// Operation of a process.
#[derive(Default)]
struct Operation<'a> {
    first: u64,
    last: u64,
    has_ended: bool,
    lock: Option<&'a str>,
    token: Option<u64>,
    task: Option<&'a str>,
    has_key: bool,
}

/// Returns the records that a later part of the history needs.
pub(super) fn needed_later(records: Vec<Record>, now: u64) -> Vec<Record> {
    if now == u64::MAX {
        return Vec::new();
    }
    let needed = find_needed(&records, now);
    let mut needed = needed.into_iter();
    records.into_iter().filter(|_| needed.next().unwrap_or_default()).collect()
}

/// Returns for each record whether a later part needs it.
fn find_needed(records: &[Record], now: u64) -> Vec<bool> {
    let operations = operations(records);
    let oldest = now.saturating_sub(LONGEST);
    let open = operations.values().filter(|operation| !operation.has_ended).map(|operation| operation.first);
    let horizon = open.fold(now, u64::min).max(oldest).saturating_sub(MARGIN);
    let ended: HashSet<&str> = records.iter().filter_map(final_task).collect();
    let mut newest: HashMap<&str, (u64, (u32, u32))> = HashMap::new();
    for (id, operation) in &operations {
        if let (Some(lock), Some(token)) = (operation.lock, operation.token) {
            let newest = newest.entry(lock).or_insert((token, *id));
            *newest = (*newest).max((token, *id));
        }
    }
    let newest: HashSet<(u32, u32)> = newest.into_values().map(|(_, id)| id).collect();
    let is_needed = |id: &(u32, u32), operation: &Operation<'_>| {
        !operation.has_ended
            || operation.last >= horizon
            || newest.contains(id)
            || operation.task.is_some_and(|task| !ended.contains(task))
            || operation.has_key && operation.last >= oldest
    };
    let kept: HashMap<_, _> = operations.iter().filter(|(id, operation)| is_needed(id, operation)).collect();
    let tasks: HashSet<&str> = kept.values().filter_map(|operation| operation.task).collect();
    let processes: HashSet<u32> = kept.keys().map(|(process, _)| *process).collect();
    let leases: HashSet<(&str, u64)> =
        kept.values().filter_map(|operation| operation.lock.zip(operation.token)).collect();
    let forces = records.iter().filter_map(|record| match &record.event {
        Event::Force { lock, token, .. } if leases.contains(&(lock.as_str(), *token)) => record.id(),
        _ => None,
    });
    let forces: HashSet<(u32, u32)> = forces.collect();
    let excusable = excusable(kept.values().copied(), oldest);
    let may_excuse = |from: u64, to: u64| {
        let next = excusable.partition_point(|(_, end)| *end < from);
        excusable.get(next).is_some_and(|(start, _)| *start <= to)
    };
    let of_record = |record: &Record| match &record.event {
        Event::Sink { .. } => record.at >= horizon,
        Event::Stalled { .. } => may_excuse(record.at, record.at),
        Event::Fault { worker, fault, millis } => {
            may_excuse(record.at, record.at.saturating_add(millis.saturating_mul(1000)))
                || fault == KILL && processes.contains(worker)
        }
        Event::Final { task, .. } => record.at >= horizon || tasks.contains(task.as_str()),
        Event::EngineFault { .. } | Event::Tick { .. } | Event::Complete => true,
        _ => record.id().is_some_and(|id| kept.contains_key(&id) || forces.contains(&id)),
    };
    records.iter().map(of_record).collect()
}

/// Returns the times in which a fault may excuse one of these operations, in order and without overlaps.
fn excusable<'a>(operations: impl Iterator<Item = &'a Operation<'a>>, oldest: u64) -> Vec<(u64, u64)> {
    let around = |operation: &Operation<'_>| {
        (operation.first.saturating_sub(MARGIN), operation.last.saturating_add(MARGIN))
    };
    let until_now = |operation: &Operation<'_>| {
        // A request that waits may be granted at any time; a lease that never ends is not followed for ever.
        let waits = operation.lock.is_some() && operation.token.is_none();
        let first = if waits { operation.first } else { operation.first.max(oldest) };
        (!operation.has_ended).then_some((first.saturating_sub(MARGIN), u64::MAX))
    };
    let times = operations.flat_map(|operation| [Some(around(operation)), until_now(operation)]);
    let mut times: Vec<(u64, u64)> = times.flatten().collect();
    times.sort_unstable();
    times.dedup_by(|next, last| {
        let overlaps = next.0 <= last.1;
        if overlaps {
            last.1 = last.1.max(next.1);
        }
        overlaps
    });
    times
}

fn final_task(record: &Record) -> Option<&str> {
    match &record.event {
        Event::Final { task, .. } => Some(task),
        _ => None,
    }
}

/// Returns the operations of these records. The kill of a process ends its operations.
fn operations(records: &[Record]) -> HashMap<(u32, u32), Operation<'_>> {
    let mut operations: HashMap<(u32, u32), Operation<'_>> = HashMap::new();
    let mut killed = HashSet::new();
    for record in records {
        if let Event::Fault { worker, fault, .. } = &record.event
            && fault == KILL
        {
            killed.insert(*worker);
        }
        let (Some(id), false) = (record.id(), matches!(record.event, Event::Sink { .. })) else { continue };
        let operation =
            operations.entry(id).or_insert_with(|| Operation { first: record.at, ..Operation::default() });
        operation.last = record.at;
        match &record.event {
            Event::Acquire { lock, .. } => operation.lock = Some(lock),
            Event::Granted { token, .. } => operation.token = Some(*token),
            Event::Attempt { task, .. } => operation.task = Some(task),
            Event::Ended { .. } => operation.has_ended = operation.task.is_some(),
            Event::Enqueue { key, .. } => operation.has_key = key.is_some(),
            Event::Enqueued { task, .. } => {
                (operation.task, operation.has_ended) = (Some(task.as_str()), true);
            }
            Event::Refused { .. } | Event::Released { .. } => operation.has_ended = true,
            _ => {}
        }
    }
    for ((process, _), operation) in &mut operations {
        operation.has_ended |= killed.contains(process);
    }
    operations
}
