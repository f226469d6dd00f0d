//! The rules as they are: the library's for the lock and the fence, and the client's for what it may believe.

use leasehold_model::{Applied, Fence, LockName, LockOp, LockRecord, Timestamp, Token, TokenFloor, Ttl};

/// What a world runs on. Plain functions, so that a wrong rule is one function that wraps a right one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: fn(&mut LockRecord, &LockOp, Timestamp) -> Applied,
    /// Until when a worker believes, by when it sent its request, when the reply came, and how long a lease lasts.
    pub(super) until: fn(Timestamp, Timestamp, Ttl) -> Timestamp,
    pub(super) admit: fn(&mut Fence, Token) -> bool,
    /// One pass that forgets: the floor after it, and whether the record goes.
    pub(super) forget: fn(&LockRecord, TokenFloor, Timestamp, Ttl) -> (TokenFloor, bool),
    /// A lock without a record, by the floor in the same step, and by the floor when the request was sent.
    pub(super) make: fn(LockName, TokenFloor, TokenFloor) -> LockRecord,
}

pub(super) const RIGHT: Rules = Rules {
    apply: LockRecord::apply,
    until: |sent, _received, ttl| sent.plus(ttl),
    admit: |fence, token| fence.admit(token).is_ok(),
    forget: |record, floor, now, idle| {
        let floor = floor.raised(now, idle);
        (floor, record.is_forgettable(floor))
    },
    make: |name, floor, _sent| LockRecord::without_record(name, floor),
};
