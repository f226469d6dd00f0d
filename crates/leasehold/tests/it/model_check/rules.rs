//! The rules as they are: the library's for the lock and the fence, and the client's for what it may believe.

use leasehold::model::{Applied, Fence, LockOp, LockRecord, Timestamp, Token, Ttl};

/// What a world runs on. Plain functions, so that a wrong rule is one function that wraps a right one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: fn(&mut LockRecord, &LockOp, Timestamp) -> Applied,
    /// Until when a worker believes, by when it sent its request, when the reply came, and how long a lease lasts.
    pub(super) until: fn(Timestamp, Timestamp, Ttl) -> Timestamp,
    pub(super) admit: fn(&mut Fence, Token) -> bool,
}

pub(super) const RIGHT: Rules = Rules {
    apply: LockRecord::apply,
    until: |sent, _received, ttl| sent.plus(ttl),
    admit: |fence, token| fence.admit(token).is_ok(),
};
