//! Administration of locks: queries, leases without a guard, forced release, cleaning up.

use std::sync::Arc;

use super::builder::check_ttl;
use super::in_doubt::{self, RETRY_FOR};
use super::stale_workflow_locks::clear_all_stale;
use super::status::{EventView, LastLease, LockStatus};
use crate::client::context::{Inner, not_held, parsed};
use crate::error::{Error, Result};
use crate::model::{
    ForceRelease, Holder, Lease, LeaseId, LockName, LockOp, LockRecord, Outcome, Reason, Release, Renew,
    RequestRelease, StaleToken, Swept, Token, Ttl,
};
use crate::store::{BootInstant, ListEvents, ListLocks, Page};

/// Number of the newest events that are searched for the lease that ended last.
pub(super) const SEARCHED_EVENTS: u32 = 20;

/// Administrative API for locks, and for leases that are held without a guard.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
/// let guard = leasehold.lock("nightly-report").acquire().await?;
/// let status = leasehold.locks().status("nightly-report").await?;
/// assert_eq!(status.token, guard.token());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(super) inner: Arc<Inner>,
}

impl Locks {
    pub(in crate::client) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Returns the current status of a lock; for a free lock, also the lease that ended last.
    pub async fn status(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<LockStatus> {
        self.status_of(&parsed(name)?).await
    }

    async fn status_of(&self, name: &LockName) -> Result<LockStatus> {
        let record = self.inner.locks().get(name).await?;
        let record = record.unwrap_or_else(|| LockRecord::new(name.clone()));
        let mut status = LockStatus::of(&record, self.inner.locks().now().await?);
        if record.holders.is_empty() && record.version > 0 {
            let newest = ListEvents::default().lock(name.clone()).limit(SEARCHED_EVENTS);
            status.last = LastLease::of(&self.inner.locks().history(&newest).await?.items);
        }
        Ok(status)
    }

    /// Lists locks by name, one page per call.
    pub async fn list(&self, query: &ListLocks) -> Result<Page<LockStatus>> {
        let page = self.inner.locks().list(query).await?;
        let now = self.inner.locks().now().await?;
        let items = page.items.iter().map(|record| LockStatus::of(record, now)).collect();
        Ok(Page { items, next: page.next })
    }

    /// Lists events of locks, one page per call.
    pub async fn history(&self, query: &ListEvents) -> Result<Page<EventView>> {
        let page = self.inner.locks().history(query).await?;
        Ok(Page { items: page.items.into_iter().map(EventView::from).collect(), next: page.next })
    }

    /// Renews a lease that is held without a guard, by its id and token: one round trip.
    pub async fn renew(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        lease_id: LeaseId,
        token: Token,
        ttl: Option<Ttl>,
    ) -> Result<Lease> {
        let name = parsed(name)?;
        if let Some(ttl) = ttl {
            check_ttl(&self.inner, ttl)?;
        }
        let renew = Renew { lease_id, token, ttl };
        let renewed = self.inner.renew(&name, renew.clone()).await;
        // A guard may hold the lease: after a shorter TTL its next renewal would come too late.
        match &renewed {
            Ok(Ok(lease)) if ttl.is_some() => {
                self.inner.notify_holders(&name, &Outcome::Renewed(lease.clone())).await;
            }
            Err(error) if error.is_retryable() => {
                self.inner.notify_in_doubt(&name, &LockOp::Renew(renew)).await;
            }
            _ => {}
        }
        renewed?.map_err(|now| not_held(&name, now))
    }

    /// Releases a lease that is held without a guard, by its id and token: one round trip.
    ///
    /// If the response of the store is lost, the operation is sent again. The call succeeds if the
    /// first attempt released the lease.
    pub async fn release(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        lease_id: LeaseId,
        token: Token,
    ) -> Result<()> {
        let name = parsed(name)?;
        let release = Release { lease_id, token, at_least: None };
        let until = BootInstant::now().plus(RETRY_FOR);
        let released = in_doubt::release(self.inner.locks(), &name, &release, until).await;
        in_doubt::notify_holder(&self.inner, &name, &LockOp::Release(release), &released).await;
        released?.map(drop).map_err(|now| not_held(&name, now))
    }

    /// Requests that the holders of a lock release it when they can. Holders receive the request at
    /// once if the store notifies them, else with their next renewal. Returns the number of
    /// holders: zero if the response of the store was lost and the holders have released the lock
    /// since.
    pub async fn request_release(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        by: Holder,
        reason: Option<Reason>,
    ) -> Result<u32> {
        let name = parsed(name)?;
        let request = RequestRelease { token: None, by, reason };
        let requested = in_doubt::request_release(self.inner.locks(), &name, request.clone()).await;
        match &requested {
            Ok(holders) => self.inner.notify_holders(&name, &Outcome::ReleaseRequested(*holders)).await,
            Err(error) if error.is_retryable() => {
                self.inner.notify_in_doubt(&name, &LockOp::RequestRelease(request)).await;
            }
            Err(_) => {}
        }
        requested
    }

    /// Takes a lock from the holder with this token by force. If no lease has this token any more,
    /// nothing happens. The holder may still be working; its token is stale from now on. The holder
    /// learns of the loss at once if the store notifies it, else with its next renewal.
    pub async fn force_release(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        token: Token,
        by: Holder,
        reason: Reason,
    ) -> Result<LockStatus> {
        let name = parsed(name)?;
        let force = ForceRelease { token, by, reason };
        let forced = in_doubt::force_release(self.inner.locks(), &name, force.clone()).await;
        in_doubt::notify_holder(&self.inner, &name, &LockOp::ForceRelease(force), &forced).await;
        forced?.map_err(|now| not_held(&name, now))?;
        self.status_of(&name).await
    }

    /// Checks that a token belongs to a live lease of the lock; fails with [`StaleToken`] if it
    /// does not.
    pub async fn check_fence(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        token: Token,
    ) -> Result<LockStatus> {
        let status = self.status_of(&parsed(name)?).await?;
        let live = status.holders.iter().any(|holder| holder.token == token && !holder.stale);
        if live { Ok(status) } else { Err(StaleToken::new(token, status.token).into()) }
    }

    /// Removes expired leases and tickets once, for up to `limit` locks. Also removes the locks of
    /// workflows whose execution is not running.
    pub async fn sweep(&self, limit: u32) -> Result<Swept> {
        let mut swept = self.inner.locks().sweep(limit).await?;
        // Executions need tasks with locks: without them there are no workflows.
        if self.inner.store.tasks().is_some() && self.inner.store.capabilities().tasks.locks {
            swept.leases += clear_all_stale(&self.inner).await?;
        }
        Ok(swept)
    }

    /// Removes the records of up to `limit` locks that have no holder and no waiter and were not
    /// granted for `idle`; returns their number. The tokens of such a lock keep rising when it is
    /// used again. One call examines a bounded number of locks, and the next call continues from
    /// there. Returns 0 on stores that keep every lock.
    pub async fn forget_idle(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.inner.locks().forget(idle, limit).await
    }
}
