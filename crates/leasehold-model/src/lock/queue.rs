//! Queue order and capacity of a lock.

use crate::{Lease, LockRecord, LockRequest, MAX_HOLDERS, Mode, Priority, Ticket, Timestamp};

/// Maximum number of tickets of a lock; a request that would exceed it is rejected.
pub const MAX_WAITERS: usize = 1000;

impl LockRecord {
    /// Returns whether the current holders leave capacity for `request`. Expired leases must have been
    /// removed before.
    pub(crate) fn has_capacity_for(&self, request: &LockRequest) -> bool {
        fits(self.holders.iter(), request)
    }

    pub(crate) fn insertion_index(&self, request: &LockRequest, now: Timestamp) -> usize {
        let rank = rank(request.priority, now);
        self.waiters.partition_point(|ticket| ticket.rank() <= rank)
    }
}

/// Returns whether these leases leave capacity for `request`.
pub(crate) fn fits<'a>(leases: impl Iterator<Item = &'a Lease>, request: &LockRequest) -> bool {
    let (mut slots, mut held) = (request.slots, 0);
    for lease in leases {
        match (lease.request.mode, request.mode) {
            (Mode::Shared, Mode::Shared) => {}
            // The smallest limit applies, those of the current holders included.
            (Mode::Exclusive, Mode::Exclusive) => slots = slots.min(lease.request.slots),
            _ => return false,
        }
        held += 1;
    }
    let room = match request.mode {
        Mode::Shared => MAX_HOLDERS,
        Mode::Exclusive => slots.get() as usize,
    };
    held < room
}

impl Ticket {
    /// Returns the rank of the ticket in its queue; lower ranks are granted first.
    pub fn rank(&self) -> i64 {
        rank(self.request.priority, self.since)
    }
}

/// Returns the rank of a request; lower ranks are granted first. The rank is the time of arrival,
/// moved ahead by one step per unit of priority. Ranks do not change while time passes, so the
/// queue stays sorted, and a ticket can only be overtaken by requests that arrive within the steps
/// between them: no ticket starves.
pub(crate) fn rank(priority: Priority, since: Timestamp) -> i64 {
    let since = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    let step = i64::try_from(Priority::STEP.as_micros()).unwrap_or(i64::MAX);
    since.saturating_sub(step.saturating_mul(i64::from(priority.get())))
}
