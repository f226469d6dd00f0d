//! Search for deadlocks: reads the locks with waiters twice, and lets the model find the rings.

use crate::client::context::Inner;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{self, Deadlock, Lease, LockRecord, Timestamp};
use crate::store::{ListLocks, LockState, is_dead};

/// Maximum number of locks with waiters that one search reads.
const MAX_LOCKS: usize = 10_000;
const PAGE: u32 = 500;

/// Deadlocks of a store, at one point of its time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Deadlocks {
    /// Rings of waits; each was read twice without a change.
    pub found: Vec<Deadlock>,
    /// Number of locks with waiters that were read.
    pub examined: usize,
    /// Whether all locks with waiters were read: a search reads at most 10,000 of them.
    pub complete: bool,
    /// Store time of the search.
    pub now: Timestamp,
}

pub(super) async fn find(inner: &Inner) -> Result<Deadlocks> {
    if !inner.store.capabilities().queues {
        let message =
            format!("{} has no queues: it does not know who waits", inner.store.capabilities().engine);
        let hint = "use an engine with queues, such as SQLite, PostgreSQL or Redis";
        return Err(Error::store(StoreErrorKind::NotSupported, message, hint));
    }
    let (first, complete) = waited_locks(inner).await?;
    let now = inner.locks().now().await?;
    let mut search = Deadlocks { found: Vec::new(), examined: first.len(), complete, now };
    let suspects = model::suspected_locks(&first, now, is_over);
    if suspects.is_empty() {
        return Ok(search);
    }
    let mut second = Vec::with_capacity(suspects.len());
    for name in &suspects {
        second.extend(inner.locks().get(name).await?);
    }
    search.now = inner.locks().now().await?;
    search.found = model::deadlocks(&first, &second, search.now, is_over);
    Ok(search)
}

/// Returns the locks with waiters, and whether these are all.
async fn waited_locks(inner: &Inner) -> Result<(Vec<LockRecord>, bool)> {
    let (mut records, mut query) = (Vec::new(), ListLocks::default().state(LockState::Waited).limit(PAGE));
    loop {
        let page = inner.locks().list(&query).await?;
        records.extend(page.items);
        match page.next {
            None => return Ok((records, true)),
            Some(_) if records.len() >= MAX_LOCKS => return Ok((records, false)),
            next => query.after = next,
        }
        // An embedded engine reads on this thread: other work of the runtime runs in between.
        tokio::task::yield_now().await;
    }
}

fn is_over(lease: &Lease) -> bool {
    lease.request.process.as_ref().is_some_and(is_dead)
}
