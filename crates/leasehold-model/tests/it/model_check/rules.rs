//! Correct rules: those of the library for the lock and the fence, and those of the client for its
//! belief.

use leasehold_model::{Applied, Fence, LockName, LockOp, LockRecord, Timestamp, Token, TokenFloor, Ttl};

/// Rules of a configuration. Plain functions, so that a mutant is one function that wraps a correct
/// one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: fn(&mut LockRecord, &LockOp, Timestamp) -> Applied,
    /// Returns the time until which a worker believes to hold the lock, from the time at which it
    /// sent its request, the time of the reply, and the TTL.
    pub(super) until: fn(Timestamp, Timestamp, Ttl) -> Timestamp,
    pub(super) admit: fn(&mut Fence, Token) -> bool,
    /// Runs one pass that deletes idle locks: returns the minimum token after it, and whether the
    /// record is deleted.
    pub(super) forget: fn(&LockRecord, TokenFloor, Timestamp, Ttl) -> (TokenFloor, bool),
    /// Creates a lock without a record, from the minimum token in the same step, and from that when
    /// the request was sent.
    pub(super) make: fn(LockName, TokenFloor, TokenFloor) -> LockRecord,
}

pub(super) const CORRECT: Rules = Rules {
    apply: LockRecord::apply,
    until: |sent, _received, ttl| sent.plus(ttl),
    admit: |fence, token| fence.admit(token).is_ok(),
    forget: |record, floor, now, idle| {
        let floor = floor.raised(now, idle);
        (floor, record.is_forgettable(floor))
    },
    make: |name, floor, _sent| LockRecord::without_record(name, floor),
};
