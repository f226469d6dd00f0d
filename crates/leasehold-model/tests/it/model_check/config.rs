//! How large a world is: who works in it, what they want, and how often things may happen.

use std::sync::Arc;

use leasehold_model::{Ask, Holder, Metadata, Mode, Priority, Slots, Timestamp, Ttl};

use super::facts::Fact;
use super::state::lease_id;

/// One world. Everything that could go on for ever has a bound, so that the world has an end.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) name: &'static str,
    pub(super) workers: Vec<Plan>,
    /// What one tick of the clock is worth. Everything that lasts is counted in ticks.
    pub(super) tick: Ttl,
    pub(super) ticks: u32,
    /// Writes to the fenced resource, by all workers together. Two show all that can go wrong: a pair in wrong order.
    pub(super) writes: u8,
    pub(super) crashes: u8,
    /// Force-releases by an admin who looked earlier.
    pub(super) forces: u8,
    /// Requests to the holders to stop when they can.
    pub(super) stops: u8,
    /// Sweeps by two sweepers who looked earlier.
    pub(super) sweeps: u8,
    /// Requests that the network delivers twice.
    pub(super) duplicates: u8,
    /// Passes that forget the lock if it was not granted for `idle` ticks…
    pub(super) forgets: u8,
    pub(super) idle: u32,
    /// …and how often the engine's clock is set back, to where it began. Workers have clocks of their own, which are not:
    /// what they believe is not looked at in such a world.
    pub(super) set_backs: u8,
    /// Look no further than so many steps; without it, the world is explored to its end.
    pub(super) depth: Option<usize>,
    /// What must have happened somewhere in this world.
    pub(super) must_see: &'static [Fact],
}

/// What one worker wants, and how often it tries.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) slots: u32,
    pub(super) priority: i32,
    pub(super) ttl: u32,
    /// It waits in the queue; its ticket lasts so long from each asking.
    pub(super) queue: Option<u32>,
    /// It takes leases that have not been renewed for so long.
    pub(super) steal_after: Option<u32>,
    /// Its releases keep others out until so long after it acquired.
    pub(super) at_least: Option<u32>,
    /// Requests with an id of their own.
    pub(super) attempts: u8,
    /// How often each of them is sent: again because the answer is late, or because it waits.
    pub(super) asks: u8,
    /// The last of these does not want to wait any more.
    pub(super) impatient: bool,
    pub(super) renewals: u8,
    /// Its renewals ask for another ttl.
    pub(super) renew_for: Option<u32>,
    /// It may take a request back.
    pub(super) leaves: bool,
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
            forgets: 0,
            idle: 1,
            set_backs: 0,
            depth: None,
            must_see: &[],
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
            asks: 1,
            impatient: false,
            renewals: 0,
            renew_for: None,
            leaves: false,
        }
    }
}

impl Config {
    /// So many ticks.
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

    /// What a worker asks for in one of its attempts.
    pub(super) fn ask(&self, worker: usize, attempt: u8) -> Arc<Ask> {
        let plan = &self.workers[worker];
        Arc::new(Ask {
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
