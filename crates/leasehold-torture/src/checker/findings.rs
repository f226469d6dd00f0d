//! What the checkers share: the history with its spans, and what they find in it.

use std::fmt;

use serde::Serialize;

use super::spans::Span;
use crate::history::{Event, History, Record};

/// Group of promises that a history is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Property {
    /// Conflicting holders of a lock never overlap (S1).
    Exclusion,
    /// Tokens rise, and a resource that checks them accepts no older one (S3, S4).
    Fencing,
    /// A waiter that came later is not granted the lock first (L3).
    FairQueue,
    /// Acknowledged tasks end, one attempt at a time, and a key has one task (S6, S7, S8).
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
    /// Records that show it, by time.
    pub excerpt: Vec<Record>,
}

/// Result of the check of one property.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Property that was checked.
    pub property: Property,
    /// Number of facts that were compared; 0 if the history has none of this kind.
    pub facts: u64,
    /// Violations that were found.
    pub violations: Vec<Violation>,
}

/// A history with the spans of its leases.
pub(super) struct Check<'a> {
    pub(super) history: &'a History,
    pub(super) spans: &'a [Span<'a>],
}

/// Collects the facts and violations of one property.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) facts: u64,
    pub(super) violations: Vec<Violation>,
}

impl Check<'_> {
    pub(super) fn run(&self, property: Property, check: impl Fn(&Self, &mut Findings)) -> Checked {
        let mut findings = Findings::default();
        check(self, &mut findings);
        Checked { property, facts: findings.facts, violations: findings.violations }
    }

    /// Returns the records of these operations, and the faults and stalls of their processes
    /// between the first and the last of them.
    pub(super) fn excerpt(&self, ops: &[(u32, u32)]) -> Vec<Record> {
        let is_of = |record: &Record| match &record.event {
            Event::Sink { worker, op, .. } => ops.contains(&(*worker, *op)),
            event => event.op().is_some_and(|op| ops.contains(&(record.process, op))),
        };
        let records = &self.history.records;
        let first = records.iter().position(is_of).unwrap_or_default();
        let last = records.iter().rposition(is_of).unwrap_or_default();
        let is_near = |record: &Record| match record.event {
            Event::Fault { worker, .. } => ops.iter().any(|(process, _)| *process == worker),
            Event::Stalled { .. } => ops.iter().any(|(process, _)| *process == record.process),
            _ => false,
        };
        let near = records.get(first..=last).unwrap_or_default();
        near.iter().filter(|record| is_of(record) || is_near(record)).cloned().collect()
    }
}

/// Formats a time of a record for a message.
pub(super) fn seconds(history: &History, at: u64) -> String {
    let start = history.records.first().map_or(0, |record| record.at);
    let micros = at.saturating_sub(start);
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}
