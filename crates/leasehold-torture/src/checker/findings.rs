//! What the checkers share: the part of the history that is checked, and what they find in it.

use std::fmt;

use serde::Serialize;

use super::spans::Span;
use crate::history::{Event, History, Record};

/// Number of violations of a property whose records are copied. The others have a message only.
const EXCERPTS: usize = 20;

/// Maximum number of violations of a property that are reported.
const MAX_VIOLATIONS: usize = 1000;

/// Group of promises that a history is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Property {
    /// Conflicting holders of a lock never overlap, and a lease that has ended is not renewed (S1, S5).
    Exclusion,
    /// Tokens rise, and a resource that checks them accepts no older one (S3, S4).
    Fencing,
    /// A waiter that came later is not granted the lock first (L3).
    FairQueue,
    /// Acknowledged tasks end, one attempt at a time, and a key and a tick have one task (S6, S7, S8).
    Tasks,
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "exclusion",
            Self::Fencing => "fencing",
            Self::FairQueue => "fair queue",
            Self::Tasks => "tasks",
        })
    }
}

/// Violation of a promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// What is violated, and by what.
    pub message: String,
    /// Records that show it, by time; empty for all but the first violations.
    pub excerpt: Vec<Record>,
}

/// Result of the check of one property.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Property that was checked.
    pub property: Property,
    /// Number of compared that were compared; 0 if the history has none of this kind.
    pub compared: u64,
    /// Violations that were found, 1000 at most.
    pub violations: Vec<Violation>,
    /// Number of findings that are no violations, because the engine may have lost data.
    pub excused: u64,
}

/// Part of a history with the spans of its leases, and the times in which the engine may have lost
/// data.
pub(super) struct Check<'a> {
    pub(super) history: &'a History,
    pub(super) spans: &'a [Span<'a>],
    /// Time of the first record of the whole history.
    pub(super) start: u64,
    /// Time from which on records are new; older ones were part of an earlier check.
    pub(super) new_from: u64,
    pub(super) losses: &'a [Loss],
}

/// Time in which the engine may have lost what it had acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    from: u64,
    to: u64,
    /// Whether the engine may have kept a part of what it lost.
    parts: bool,
}

impl Loss {
    /// Returns the loss that a record states.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let Event::EngineFault { millis, loses: true, loses_parts: parts, .. } = record.event else {
            return None;
        };
        Some(Self { from: record.at, to: record.at.saturating_add(millis.saturating_mul(1000)), parts })
    }
}

/// Collects the compared and violations of one property.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) compared: u64,
    pub(super) violations: Vec<Violation>,
    pub(super) excused: u64,
}

impl Findings {
    /// Adds a violation that these operations show, unless an earlier check has found it.
    pub(super) fn report(&mut self, check: &Check<'_>, message: String, ops: &[(u32, u32)]) {
        if self.violations.len() >= MAX_VIOLATIONS {
            return;
        }
        if check.new_from > 0 && self.violations.iter().any(|violation| violation.message == message) {
            return;
        }
        let excerpt = if self.violations.len() < EXCERPTS { check.excerpt(ops) } else { Vec::new() };
        self.violations.push(Violation { message, excerpt });
    }

    /// Adds a violation that this record shows.
    pub(super) fn report_record(&mut self, message: String, record: &Record) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(Violation { message, excerpt: vec![record.clone()] });
        }
    }
}

impl Check<'_> {
    /// Whether a time is in the part of the history that was not checked before.
    pub(super) fn is_new(&self, at: u64) -> bool {
        at >= self.new_from
    }

    /// Whether the engine may have lost a lease that another one, granted at this time, conflicts
    /// with. The holder of a lost lease learns of it with its next renewal, at its end at the latest.
    pub(super) fn may_lose_leases(&self, granted: u64) -> bool {
        let ttl = self.history.header.ttl_millis.saturating_mul(1000);
        self.losses.iter().any(|loss| loss.from <= granted && granted < loss.to.saturating_add(ttl))
    }

    /// Whether the engine may have lost the effect of a request that was sent at this time.
    pub(super) fn may_lose(&self, sent: u64) -> bool {
        self.losses.iter().any(|loss| sent < loss.to)
    }

    /// Whether the engine may have lost some keys of an operation and kept others. Whatever a task needs may be
    /// missing then: its place in the queue, its lease, or the end of a task before it that has the same lock.
    pub(super) fn may_lose_parts(&self) -> bool {
        self.losses.iter().any(|loss| loss.parts)
    }

    /// Returns the records of these operations, and the faults and stalls of their processes
    /// between the first and the last of them.
    fn excerpt(&self, ops: &[(u32, u32)]) -> Vec<Record> {
        let is_of = |record: &Record| record.id().is_some_and(|id| ops.contains(&id));
        let records = &self.history.records;
        let first = records.iter().position(is_of).unwrap_or_default();
        let last = records.iter().rposition(is_of).unwrap_or_default();
        let is_near = |record: &Record| match record.event {
            Event::EngineFault { .. } => true,
            Event::Fault { worker, .. } => ops.iter().any(|(process, _)| *process == worker),
            Event::Stalled { .. } => ops.iter().any(|(process, _)| *process == record.process),
            _ => false,
        };
        let near = records.get(first..=last).unwrap_or_default();
        near.iter().filter(|record| is_of(record) || is_near(record)).cloned().collect()
    }
}

/// Formats a time of a record for a message.
pub(super) fn seconds(check: &Check<'_>, at: u64) -> String {
    let micros = at.saturating_sub(check.start);
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}
