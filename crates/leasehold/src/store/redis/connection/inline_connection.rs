//! Connection on the caller's own runtime, for a caller without many concurrent callers: it reaches
//! the server without a thread switch.
//!
//! It carries any number of calls at a time, because commands on one connection stay in order. It is
//! preferred only for callers on its runtime and only while few calls are in progress: more are faster
//! together on the background connection, and a blocked runtime delays no call of another one. A call
//! in doubt binds its lease to this connection, as to any other.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::connections::Slot;
use crate::store::home_runtime::HomeRuntime;

/// Number of calls in progress from which further calls use the background connection.
const MAX_INLINE_CALLS: usize = 3;

/// Slot for the connection on the caller's runtime.
pub(super) struct InlineConnection {
    /// Runtime that the connection lives on.
    home: HomeRuntime,
    pub(super) slot: Slot,
    /// Number of calls in progress on all connections.
    in_progress: AtomicUsize,
}

impl InlineConnection {
    pub(super) fn new() -> Self {
        Self { home: HomeRuntime::current(), slot: Slot::default(), in_progress: AtomicUsize::new(0) }
    }

    /// Whether the caller should use this connection.
    pub(super) fn is_preferred(&self) -> bool {
        self.is_at_home() && self.in_progress.load(Ordering::Relaxed) < MAX_INLINE_CALLS
    }

    /// Whether the caller is on the runtime of the connection.
    pub(super) fn is_at_home(&self) -> bool {
        self.home.is_current()
    }

    /// Counts a call in progress until the returned guard is dropped.
    pub(super) fn begin_call(&self) -> InProgress<'_> {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(&self.in_progress)
    }
}

/// Guard that counts one call in progress until it is dropped.
pub(super) struct InProgress<'a>(&'a AtomicUsize);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
