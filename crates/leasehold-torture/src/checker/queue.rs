//! L3: a waiter that came later is not granted the lock first. A waiter whose process was stopped,
//! cut off or not scheduled, or whose requests took long, may lose its position, and so may one whose
//! lease was ended by force before its process knew of it.

use std::collections::{HashMap, HashSet};

use super::findings::{Check, Findings, seconds};
use crate::history::{Event, History, Mode};

/// Time after a fault in which a client may still be without its position, in microseconds: the
/// longest time that a client waits for a response, and one more second.
const AFTERMATH: u64 = 6_000_000;

/// A waiter in a queue.
#[derive(Clone, Copy)]
struct Waiter {
    id: (u32, u32),
    requested: u64,
    queued: u64,
    granted: u64,
}

pub(super) fn check(check: &Check<'_>, findings: &mut Findings) {
    if !check.history.header.queues {
        return;
    }
    let (mut requested, mut queued) = (HashMap::new(), HashMap::new());
    let mut grants: HashMap<&str, Vec<(Waiter, bool)>> = HashMap::new();
    for record in &check.history.records {
        match &record.event {
            Event::Acquire { op, lock, mode: Mode::Exclusive } => {
                requested.insert((record.process, *op), (record.at, lock.as_str()));
            }
            Event::Queued { op } => {
                queued.entry((record.process, *op)).or_insert(record.at);
            }
            Event::Granted { op, .. } => {
                let id = (record.process, *op);
                if let Some((requested, lock)) = requested.get(&id).copied() {
                    let queued = queued.get(&id).copied();
                    let waiter =
                        Waiter { id, requested, queued: queued.unwrap_or(record.at), granted: record.at };
                    grants.entry(lock).or_default().push((waiter, queued.is_some()));
                }
            }
            _ => {}
        }
    }
    let disturbances = disturbances(check.history);
    let forces = unknown_forces(check.history);
    for (lock, grants) in grants {
        let forces = forces.get(lock).map(Vec::as_slice).unwrap_or_default();
        of_lock(check, &Excuses { disturbances: &disturbances, forces }, lock, &grants, findings);
    }
}

/// Goes backwards from the last grant: the earliest position of all later grants must not be before
/// the request of an earlier one.
fn of_lock(
    check: &Check<'_>,
    excuses: &Excuses<'_>,
    lock: &str,
    grants: &[(Waiter, bool)],
    findings: &mut Findings,
) {
    let mut passed: Vec<Waiter> = Vec::new();
    for (grant, waited) in grants.iter().rev() {
        // Only waiters that had their position before this grant was requested can be passed by it.
        passed.retain(|waiter| waiter.queued < grant.granted);
        for waiter in passed.iter().filter(|waiter| waiter.queued < grant.requested) {
            let is_excused = excuses.excuse(waiter, grant);
            if !is_excused {
                let message = format!(
                    "process {} has waited for '{lock}' since {} s, and process {}, which came at {} s, is granted it first",
                    waiter.id.0,
                    seconds(check, waiter.queued),
                    grant.id.0,
                    seconds(check, grant.requested)
                );
                findings.report(check, message, &[waiter.id, grant.id]);
            }
        }
        if *waited {
            findings.compared += u64::from(check.is_new(grant.granted));
            passed.push(*grant);
        }
    }
}

/// What may have cost a waiter for a lock its position.
struct Excuses<'a> {
    disturbances: &'a Disturbances,
    /// Times at which leases of the lock were ended by force that no process knew of.
    forces: &'a [u64],
}

impl Excuses<'_> {
    /// Whether the waiter may have lost its position before this grant.
    fn excuse(&self, waiter: &Waiter, grant: &Waiter) -> bool {
        let of_waiter = [Some(waiter.id.0), None].into_iter().filter_map(|of| self.disturbances.get(&of));
        let mut disturbances = of_waiter.flatten();
        disturbances.any(|(from, to)| *from <= grant.granted && *to >= waiter.requested)
            || self.forces.iter().any(|at| (waiter.requested..waiter.granted).contains(at))
    }
}

/// Returns the times of forced releases by their lock, of leases whose grant no process has recorded:
/// a waiter was granted the lock, and has not received the response.
fn unknown_forces(history: &History) -> HashMap<&str, Vec<u64>> {
    let mut locks: HashMap<(u32, u32), &str> = HashMap::new();
    // Tokens of different locks may be equal.
    let mut known: HashSet<(&str, u64)> = HashSet::new();
    for record in &history.records {
        match &record.event {
            Event::Acquire { op, lock, .. } => _ = locks.insert((record.process, *op), lock),
            Event::Granted { op, token, .. } => {
                known.extend(locks.get(&(record.process, *op)).map(|lock| (*lock, *token)));
            }
            _ => {}
        }
    }
    let mut forces: HashMap<&str, Vec<u64>> = HashMap::new();
    for record in &history.records {
        if let Event::Force { lock, token, .. } = &record.event
            && !known.contains(&(lock.as_str(), *token))
        {
            forces.entry(lock).or_default().push(record.at);
        }
    }
    forces
}

/// Times in which a process may have lost its position, by process; those of `None` are of all processes.
type Disturbances = HashMap<Option<u32>, Vec<(u64, u64)>>;

/// Returns the faults of all processes and of the engine, the times in which processes were not
/// scheduled, and their requests that took longer than a quarter of the TTL.
fn disturbances(history: &History) -> Disturbances {
    let slow = history.header.ttl_millis.saturating_mul(1000) / 4;
    let mut sent: HashMap<(u32, u32), u64> = HashMap::new();
    let mut found = Disturbances::new();
    for record in &history.records {
        let at = record.at;
        let (process, from, to) = match &record.event {
            Event::Fault { worker, millis, .. } => {
                (Some(*worker), at, at.saturating_add(millis.saturating_mul(1000)))
            }
            Event::EngineFault { millis, .. } => (None, at, at.saturating_add(millis.saturating_mul(1000))),
            Event::Stalled { millis } => {
                (Some(record.process), at.saturating_sub(millis.saturating_mul(1000)), at)
            }
            Event::Acquire { op, .. } | Event::Enqueue { op, .. } | Event::Ended { op, .. } => {
                sent.insert((record.process, *op), at);
                continue;
            }
            Event::Queued { op } | Event::Enqueued { op, .. } | Event::Released { op, .. } => {
                let from = sent.remove(&(record.process, *op)).unwrap_or(at);
                if at - from < slow {
                    continue;
                }
                (Some(record.process), from, at)
            }
            _ => continue,
        };
        found.entry(process).or_default().push((from, to.saturating_add(AFTERMATH)));
    }
    found
}
