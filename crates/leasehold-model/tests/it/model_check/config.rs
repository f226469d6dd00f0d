//! Size of a configuration: its workers, their requests, and how often events may happen.

use std::sync::Arc;

use leasehold_model::{Holder, LockRequest, Metadata, Mode, Priority, Slots, Timestamp, Ttl};

use super::coverage::Situation;
use super::state::lease_id;

/// Configuration. Everything that could repeat forever has a bound, so that the state space is
/// finite.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) name: &'static str,
    pub(super) workers: Vec<Plan>,
    /// Duration of one tick of the clock. All durations are counted in ticks.
    pub(super) tick: Ttl,
    pub(super) ticks: u32,
    /// Number of writes to the fenced resource, by all workers together. Two suffice for every
    /// fault: a pair in the wrong order.
    pub(super) writes: u8,
    pub(super) crashes: u8,
    /// Number of forced releases by an admin that has read the lock earlier.
    pub(super) forces: u8,
    /// Number of release requests to the holders.
    pub(super) stops: u8,
    /// Number of sweeps by two sweepers that have read the lock earlier.
    pub(super) sweeps: u8,
    /// Number of requests that the network delivers twice.
    pub(super) duplicates: u8,
    /// Number of passes that delete the lock if it was not granted for `idle` ticks.
    pub(super) deletions: u8,
    pub(super) idle: u32,
    /// How often the engine's clock is set back to its start. Workers have their own clocks, which
    /// are not set back: their beliefs are not checked in such a configuration.
    pub(super) clock_resets: u8,
    /// Maximum number of steps; `None` explores the whole state space.
    pub(super) depth: Option<usize>,
    /// Situations that must occur somewhere in this configuration.
    pub(super) must_cover: &'static [Situation],
}

/// Requests of one worker, and how often it sends them.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) slots: u32,
    pub(super) priority: i32,
    pub(super) ttl: u32,
    /// TTL of the worker's ticket from each request, if it waits in the queue.
    pub(super) queue: Option<u32>,
    /// The worker steals leases that have not been renewed for this time.
    pub(super) steal_after: Option<u32>,
    /// The worker's releases keep others out until this time after its acquisition.
    pub(super) at_least: Option<u32>,
    /// Number of requests with different ids.
    pub(super) attempts: u8,
    /// How often each request is sent: again because the response is late, or because the worker
    /// waits.
    pub(super) sends: u8,
    /// Whether the last repetition does not wait any more.
    pub(super) stops_waiting: bool,
    pub(super) renewals: u8,
    /// TTL in the worker's renewals, if it differs.
    pub(super) renew_for: Option<u32>,
    /// Whether the worker may withdraw a request.
    pub(super) withdraws: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "",
            workers: Vec::new(),
            tick: Ttl::MIN,
            ticks: 3,
            writes: 0,
            crashes: 0,
            forces: 0,
            stops: 0,
            sweeps: 0,
            duplicates: 0,
            deletions: 0,
            idle: 1,
            clock_resets: 0,
            depth: None,
            must_cover: &[],
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            mode: Mode::Exclusive,
            slots: 1,
            priority: 0,
            ttl: 2,
            queue: None,
            steal_after: None,
            at_least: None,
            attempts: 1,
            sends: 1,
            stops_waiting: false,
            renewals: 0,
            renew_for: None,
            withdraws: false,
        }
    }
}

impl Config {
    /// Returns this number of ticks as a duration.
    pub(super) fn lasting(&self, ticks: u32) -> Ttl {
        Ttl::new(self.tick.as_duration() * ticks).unwrap()
    }

    /// The clock starts one tick after zero: zero itself would hide a token that was never set.
    pub(super) fn start(&self) -> Timestamp {
        Timestamp::default().plus(self.tick)
    }

    pub(super) fn end(&self) -> Timestamp {
        Timestamp::default().plus(self.lasting(self.ticks + 1))
    }

    /// Returns the request of a worker's attempt.
    pub(super) fn request(&self, worker: usize, attempt: u8) -> Arc<LockRequest> {
        let plan = &self.workers[worker];
        Arc::new(LockRequest {
            lease_id: lease_id(worker, attempt),
            holder: Holder::new(format!("w{worker}")).unwrap(),
            mode: plan.mode,
            slots: Slots::new(plan.slots).unwrap(),
            priority: Priority::new(plan.priority).unwrap(),
            ttl: self.lasting(plan.ttl),
            metadata: Metadata::default(),
            process: None,
        })
    }
}
