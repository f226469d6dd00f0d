//! Queue order and capacity of a lock.

use super::{Ask, LockRecord, MAX_HOLDERS, Mode, Priority, Ticket, Timestamp};

impl LockRecord {
    /// Returns whether the current holders leave capacity for `ask`. Expired leases must have been
    /// removed before.
    pub(super) fn admits(&self, ask: &Ask) -> bool {
        let mut slots = ask.slots;
        for lease in &self.holders {
            match (lease.ask.mode, ask.mode) {
                (Mode::Shared, Mode::Shared) => {}
                // The smallest limit applies, those of the current holders included.
                (Mode::Exclusive, Mode::Exclusive) => slots = slots.min(lease.ask.slots),
                _ => return false,
            }
        }
        let room = match ask.mode {
            Mode::Shared => MAX_HOLDERS,
            Mode::Exclusive => slots.get() as usize,
        };
        self.holders.len() < room
    }

    /// Returns the queue index of a request that arrives at `now`.
    pub(super) fn place(&self, ask: &Ask, now: Timestamp) -> usize {
        let rank = rank(ask.priority, now);
        self.waiters.partition_point(|ticket| ticket.rank() <= rank)
    }
}

impl Ticket {
    fn rank(&self) -> i64 {
        rank(self.ask.priority, self.since)
    }
}

/// Returns the rank of a request; lower ranks are granted first. The rank is the time of arrival,
/// moved ahead by one step per unit of priority. Ranks do not change while time passes, so the
/// queue stays sorted, and a ticket can only be overtaken by requests that arrive within the steps
/// between them: no ticket starves.
pub(super) fn rank(priority: Priority, since: Timestamp) -> i64 {
    let since = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    let step = i64::try_from(Priority::STEP.as_micros()).unwrap_or(i64::MAX);
    since.saturating_sub(step.saturating_mul(i64::from(priority.get())))
}
