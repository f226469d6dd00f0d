//! L3: a waiter that came later is not granted the lock first. A waiter whose process was stopped,
//! cut off or not scheduled, or whose requests took long, may lose its position.

use std::collections::HashMap;

use super::findings::{Check, Findings, Violation, seconds};
use crate::history::{Event, History, Mode};

/// Time after a fault in which a client may still be without its position, in microseconds: the
/// longest time that a client waits for a response, and one more second.
const AFTERMATH: u64 = 6_000_000;

/// A waiter in a queue.
#[derive(Clone, Copy)]
struct Waiter {
    id: (u32, u32),
    asked: u64,
    queued: u64,
    granted: u64,
}

pub(super) fn check(check: &Check<'_>, findings: &mut Findings) {
    if !check.history.header.queues {
        return;
    }
    let (mut asked, mut queued) = (HashMap::new(), HashMap::new());
    let mut grants: HashMap<&str, Vec<(Waiter, bool)>> = HashMap::new();
    for record in &check.history.records {
        match &record.event {
            Event::Acquire { op, lock, mode: Mode::Exclusive } => {
                asked.insert((record.process, *op), (record.at, lock.as_str()));
            }
            Event::Queued { op } => {
                queued.entry((record.process, *op)).or_insert(record.at);
            }
            Event::Granted { op, .. } => {
                let id = (record.process, *op);
                if let Some((asked, lock)) = asked.get(&id).copied() {
                    let queued = queued.get(&id).copied();
                    let waiter =
                        Waiter { id, asked, queued: queued.unwrap_or(record.at), granted: record.at };
                    grants.entry(lock).or_default().push((waiter, queued.is_some()));
                }
            }
            _ => {}
        }
    }
    let disturbances = disturbances(check.history);
    for (lock, grants) in grants {
        of_lock(check, &disturbances, lock, &grants, findings);
    }
}

/// Goes backwards from the last grant: the earliest position of all later grants must not be before
/// the request of an earlier one.
fn of_lock(
    check: &Check<'_>,
    disturbances: &[Disturbance],
    lock: &str,
    grants: &[(Waiter, bool)],
    findings: &mut Findings,
) {
    let mut passed: Vec<Waiter> = Vec::new();
    for (grant, waited) in grants.iter().rev() {
        // Only waiters that had their position before this grant was requested can be passed by it.
        passed.retain(|waiter| waiter.queued < grant.granted);
        for waiter in passed.iter().filter(|waiter| waiter.queued < grant.asked) {
            let is_excused = disturbances.iter().any(|disturbance| {
                disturbance.process == waiter.id.0
                    && disturbance.from <= grant.granted
                    && disturbance.to >= waiter.asked
            });
            if !is_excused {
                let message = format!(
                    "process {} has waited for '{lock}' since {} s, and process {}, which came at {} s, is granted it first",
                    waiter.id.0,
                    seconds(check.history, waiter.queued),
                    grant.id.0,
                    seconds(check.history, grant.asked)
                );
                let excerpt = check.excerpt(&[waiter.id, grant.id]);
                findings.violations.push(Violation { message, excerpt });
            }
        }
        if *waited {
            findings.facts += 1;
            passed.push(*grant);
        }
    }
}

/// Time in which a process may have lost its position.
struct Disturbance {
    process: u32,
    from: u64,
    to: u64,
}

/// Returns the faults of all processes, the times in which they were not scheduled, and their
/// requests that took longer than a quarter of the TTL.
fn disturbances(history: &History) -> Vec<Disturbance> {
    let slow = history.header.ttl_millis * 1000 / 4;
    let mut sent: HashMap<(u32, u32), u64> = HashMap::new();
    let mut found = Vec::new();
    for record in &history.records {
        let at = record.at;
        let (process, from, to) = match &record.event {
            Event::Fault { worker, millis, .. } => (*worker, at, at + millis * 1000),
            Event::Stalled { millis } => (record.process, at.saturating_sub(millis * 1000), at),
            Event::Acquire { op, .. } | Event::Enqueue { op, .. } | Event::Ended { op, .. } => {
                sent.insert((record.process, *op), at);
                continue;
            }
            Event::Queued { op } | Event::Enqueued { op, .. } | Event::Released { op, .. } => {
                let from = sent.remove(&(record.process, *op)).unwrap_or(at);
                if at - from < slow {
                    continue;
                }
                (record.process, from, at)
            }
            _ => continue,
        };
        found.push(Disturbance { process, from, to: to + AFTERMATH });
    }
    found
}
