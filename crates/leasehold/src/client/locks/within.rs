//! Leases that the current work runs under, so that a request can declare that it was made within them.

use std::sync::Arc;

use tokio::task::futures::TaskLocalFuture;

use crate::model::LeaseRef;

tokio::task_local! {
    static ENCLOSING: Arc<[LeaseRef]>;
}

/// Returns work that runs under leases: a request that is made in it, and not in a task that it spawns, is
/// made within these leases and within those of the enclosing work.
pub(in crate::client) fn scope<F: Future>(
    leases: Vec<LeaseRef>,
    work: F,
) -> TaskLocalFuture<Arc<[LeaseRef]>, F> {
    let mut all = enclosing_leases();
    all.extend(leases);
    ENCLOSING.scope(all.into(), work)
}

/// Returns the leases that the current work runs under: those of [`Guard::run`](super::Guard::run) and of
/// the locks of tasks, from the outermost to the innermost. A process that starts others can pass them on;
/// see [`LockBuilder::within`](super::LockBuilder::within).
pub fn enclosing_leases() -> Vec<LeaseRef> {
    ENCLOSING.try_with(|leases| leases.to_vec()).unwrap_or_default()
}
