//! Snapshot of the counters.

use super::Buckets;
use crate::store::RateLimit;

/// Counts since the store was opened, in this process.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MetricsSnapshot {
    /// Number of acquired locks.
    pub acquisitions: u64,
    /// Number of released locks.
    pub releases: u64,
    /// Number of requests that found a lock held; each is counted once, however often it was retried.
    pub conflicts: u64,
    /// Number of retries of such requests.
    pub retries: u64,
    /// Number of acquire calls that ended in an error of the store.
    pub failures: u64,
    /// Number of leases that ended without their holder, by cause: taken over after they had
    /// `expired`, `stolen` as stale, `forced`, or `swept`. A takeover is counted in the process in
    /// which the lease had been granted.
    pub recovered: [(&'static str, u64); 4],
    /// Time from the first request for a lock to its grant.
    pub acquire: Buckets,
    /// Time for which locks were held.
    pub hold: Buckets,
    /// Number of task leases that were granted.
    pub task_leases: u64,
    /// Number of heartbeats and settlements for a task lease that had ended.
    pub task_lease_conflicts: u64,
    /// Number of task leases that expired.
    pub task_leases_expired: u64,
    /// Number of changes that were rejected because of an outdated version, by object: a `task` or a
    /// `document`.
    pub version_conflicts: [(&'static str, u64); 2],
    /// Remaining request quota of the engine, if it has one.
    pub budget: Option<RateLimit>,
    /// Statistics of every kind of store call.
    pub operations: Vec<Operation>,
}

/// Statistics of one kind of store call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Operation {
    /// Name of the operation.
    pub op: &'static str,
    /// Duration of the calls.
    pub took: Buckets,
    /// Number of calls that ended in an error.
    pub errors: u64,
}

impl MetricsSnapshot {
    /// Returns the total number of leases that ended without their holder.
    pub fn recovered_in_all(&self) -> u64 {
        self.recovered.iter().map(|(_, count)| count).sum()
    }
}
