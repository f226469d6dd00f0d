//! Whether a store may resend an operation by itself after its response was lost.
//!
//! Which operations are repeatable is defined once: [`LockOp::is_repeatable`],
//! [`TaskCall::is_repeatable`] and [`DocCall::is_repeatable`]. Every engine that resends uses these
//! definitions.

use super::protocol::{DocCall, TaskCall};
use crate::model::LockOp;

/// Whether an operation may be resent once it may have begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The operation changes nothing, or its repetition changes nothing more and returns the same
    /// result.
    Safe,
    /// A repetition would change more, or return a different result. The caller gets a retryable
    /// error and resolves it.
    Unsafe,
}

impl Repeat {
    const fn when(repeatable: bool) -> Self {
        if repeatable { Self::Safe } else { Self::Unsafe }
    }
}

impl From<&LockOp> for Repeat {
    fn from(op: &LockOp) -> Self {
        Self::when(op.is_repeatable())
    }
}

impl From<TaskCall> for Repeat {
    fn from(call: TaskCall) -> Self {
        Self::when(call.is_repeatable())
    }
}

impl From<DocCall> for Repeat {
    fn from(call: DocCall) -> Self {
        Self::when(call.is_repeatable())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered_otherwise_the_second_time_is_never_sent_twice() {
        let unsafe_calls = [TaskCall::Lease, TaskCall::Change, TaskCall::Archive, TaskCall::Purge];
        assert!(unsafe_calls.into_iter().all(|call| Repeat::from(call) == Repeat::Unsafe));
        let safe_calls = [TaskCall::Enqueue, TaskCall::Heartbeat, TaskCall::Settle, TaskCall::List];
        assert!(safe_calls.into_iter().all(|call| Repeat::from(call) == Repeat::Safe));
        assert_eq!(Repeat::from(DocCall::PutIf), Repeat::Unsafe);
        assert_eq!(Repeat::from(DocCall::Get), Repeat::Safe);
    }
}
