//! The numbers at one moment.

use super::Buckets;
use crate::store::Budget;

/// What was counted since the store was opened, in this process.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Locks that were had.
    pub acquisitions: u64,
    /// Locks that were given back.
    pub releases: u64,
    /// Requests that found a lock taken; each once, however often it asked.
    pub conflicts: u64,
    /// Times that such a request asked again.
    pub retries: u64,
    /// Times that asking for a lock ended in an error of the store.
    pub failures: u64,
    /// Leases that ended without their holder, by how: taken over after they had `expired`, `stolen` as stale, `forced`,
    /// or `swept`. A takeover is counted where the lease had been granted.
    pub recovered: [(&'static str, u64); 4],
    /// From asking for a lock to having it.
    pub acquire: Buckets,
    /// How long locks were held.
    pub hold: Buckets,
    /// Leases on tasks that were given.
    pub task_leases: u64,
    /// Signs of life and ends of attempts that came from a lease which was over.
    pub task_lease_conflicts: u64,
    /// Leases on tasks that ran out.
    pub task_leases_expired: u64,
    /// Changes that were made to something which had changed, by what: a `task` or a `document`.
    pub version_conflicts: [(&'static str, u64); 2],
    /// What is left of the requests that the engine allows, if it counts them.
    pub budget: Option<Budget>,
    /// Every call of the store.
    pub operations: Vec<Operation>,
}

/// One kind of call.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Its name.
    pub op: &'static str,
    /// How long it took.
    pub took: Buckets,
    /// How often it ended in an error.
    pub errors: u64,
}

impl Reading {
    /// Leases that ended without their holder, in all.
    pub fn recovered_in_all(&self) -> u64 {
        self.recovered.iter().map(|(_, count)| count).sum()
    }
}
