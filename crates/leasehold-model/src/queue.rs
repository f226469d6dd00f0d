//! The order of the queue, and what a lock has room for.

use super::{Ask, LockRecord, MAX_HOLDERS, Mode, Priority, Ticket, Timestamp};

impl LockRecord {
    /// Whether the holders leave room for `ask`. Ended leases must have been cleared away before.
    pub(super) fn admits(&self, ask: &Ask) -> bool {
        let mut slots = ask.slots;
        for lease in &self.holders {
            match (lease.ask.mode, ask.mode) {
                (Mode::Shared, Mode::Shared) => {}
                // Everybody's own idea of how many there may be is respected, that of the holders too.
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

    /// Where a request that arrives at `now` would stand in the queue.
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

/// Lower is served first: the time of arrival, moved ahead by one step for each degree of priority. As it does not
/// change while time passes, the queue is always in order, and a ticket can only be overtaken by those that come
/// within the steps between them: nothing starves.
pub(super) fn rank(priority: Priority, since: Timestamp) -> i64 {
    let since = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    let step = i64::try_from(Priority::STEP.as_micros()).unwrap_or(i64::MAX);
    since.saturating_sub(step.saturating_mul(i64::from(priority.get())))
}
