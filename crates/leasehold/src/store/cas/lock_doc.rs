//! A lock's document: its record, the newest lines of its history, and its signs of life.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, Trouble};
use crate::model::{Applied, Event, LeaseId, LockName, LockOp, LockRecord, Timestamp, Token};
use crate::store::{Doc, Draft, Fact};

/// A lock's document.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LockDoc {
    pub(super) record: LockRecord,
    /// The number of the first event in the tail.
    pub(super) first: u64,
    /// The newest events; older ones have moved out.
    pub(super) tail: Vec<Event>,
    /// The record's version at the last sign of life of each lease. Times may come twice from clocks that are off;
    /// this number never does, so whoever watches a lease knows whether it is still the same grant or renewal.
    #[serde(default)]
    signs: BTreeMap<Token, u64>,
    /// Which writes were the last, by numbers that their writers drew: so whoever missed an answer finds its own.
    #[serde(default)]
    writes: Vec<u64>,
}

/// So many of its last writes a document remembers.
const MAX_WRITES: usize = 8;

impl LockDoc {
    pub(super) fn new(name: &LockName) -> Self {
        Self {
            record: LockRecord::new(name.clone()),
            first: 1,
            tail: Vec::new(),
            signs: BTreeMap::new(),
            writes: Vec::new(),
        }
    }

    pub(super) fn read(name: &LockName, doc: Option<&Doc>) -> Result<Self> {
        doc.map_or_else(|| Ok(Self::new(name)), |doc| parse(&doc.body))
    }

    /// Applies the rules, and notes who has shown a sign of life.
    pub(super) fn apply(&mut self, op: &LockOp, now: Timestamp) -> Applied {
        let before = self.record.holders.clone();
        let applied = self.record.apply(op, now);
        if applied.changed {
            let Self { record, signs, .. } = self;
            let speaks = speaker(op);
            signs.retain(|token, _| record.holders.iter().any(|lease| lease.token == *token));
            for lease in &record.holders {
                // A sign that changes nothing in the lease is a sign all the same.
                if speaks == Some(lease.ask.lease_id) || !before.contains(lease) {
                    signs.insert(lease.token, record.version);
                }
            }
        }
        applied
    }

    /// Which sign of life of this lease is the last.
    pub(super) fn sign(&self, token: Token) -> u64 {
        self.signs.get(&token).copied().unwrap_or(0)
    }

    /// The number of the event that comes next.
    pub(super) fn next_event(&self) -> u64 {
        self.first + self.tail.len() as u64
    }

    /// Notes that it is about to be written under this number.
    pub(super) fn note_write(&mut self, number: u64) {
        if self.writes.len() >= MAX_WRITES {
            self.writes.remove(0);
        }
        self.writes.push(number);
    }

    /// Whether that write has made this document or one not long before it.
    pub(super) fn comes_from(&self, number: u64) -> bool {
        self.writes.contains(&number)
    }

    pub(super) fn draft(&self) -> Result<Draft> {
        Ok(Draft { body: write(self)?, facts: facts(&self.record), keep: None })
    }
}

/// Whose sign of life an operation is.
fn speaker(op: &LockOp) -> Option<LeaseId> {
    match op {
        LockOp::Acquire(acquire) => Some(acquire.ask.lease_id),
        LockOp::Renew(renew) | LockOp::RenewLogged(renew) => Some(renew.lease_id),
        _ => None,
    }
}

fn facts(record: &LockRecord) -> Vec<(&'static str, Fact)> {
    let status = if record.holders.is_empty() { "free" } else { "held" };
    let mut facts =
        vec![("status", Fact::Text(status.to_owned())), ("token", Fact::Number(record.token.get()))];
    if !record.waiters.is_empty() {
        facts.push(("waiters", Fact::Number(record.waiters.len() as u64)));
    }
    if let Some(lease) = record.holders.first() {
        facts.push(("holder", Fact::Text(lease.ask.holder.to_string())));
        facts.push(("lease_id", Fact::Text(lease.ask.lease_id.to_string())));
        facts.push(("acquired_at", Fact::Text(lease.acquired_at.to_string())));
        facts.push(("expires_at", Fact::Text(lease.expires_at.to_string())));
        if !lease.ask.metadata.is_empty() {
            let metadata = lease.ask.metadata.iter();
            let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            facts.push(("metadata", Fact::Texts(metadata)));
        }
    }
    facts
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(body: &str) -> Result<T> {
    serde_json::from_str(body).map_err(|error| {
        Error::store(Trouble::Broken, "a stored lock cannot be read", "restore it from a backup")
            .because(error)
    })
}

pub(super) fn write<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| {
        Error::store(Trouble::Broken, "a lock cannot be written", "please report this").because(error)
    })
}
