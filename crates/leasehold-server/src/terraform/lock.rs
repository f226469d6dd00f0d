//! Locking, unlocking, and forced unlocking of a state.

use std::sync::Arc;

use leasehold::model::{
    Acquire, Ask, EventKind, ForceRelease, Holder, LeaseId, Leave, LockName, LockOp, LockRecord, Mode,
    Outcome, Priority, Reason, Release, Slots, Timestamp, Ttl,
};
use leasehold::store::{ListEvents, LockStore, Store, notify_holders};
use leasehold::{Error, Result};

use super::lock_info::LockInfo;
use super::state::raise_min_token;
use crate::access::Identity;
use crate::problem::Problem;

/// Maximum number of attempts. A lock that becomes free while its holder is queried is requested again.
const MAX_ATTEMPTS: u32 = 5;
/// Number of events that are searched for the end of a lease.
const SEARCHED_EVENTS: u32 = 50;

/// Lock of a state.
pub(super) struct StateLock<'a> {
    pub(super) store: &'a dyn Store,
    /// Name of the state.
    pub(super) state: &'a str,
    /// Name of the lock.
    pub(super) name: LockName,
    /// Identity of the caller.
    pub(super) identity: &'a Identity,
}

/// Result of locking.
pub(super) enum LockResult {
    /// The caller holds the lock.
    Acquired,
    /// This client holds the lock or is the next waiter.
    HeldBy(LockInfo),
}

/// Result of unlocking.
pub(super) enum UnlockResult {
    /// No client with that id holds the lock any more.
    Released,
    /// Another client holds the lock.
    HeldBy(LockInfo),
    /// The lock is free, and that id never held it.
    NotHeld,
}

impl StateLock<'_> {
    fn locks(&self) -> &dyn LockStore {
        self.store.locks()
    }

    /// Acquires the lock. A repeated call with the same id returns the same lock.
    pub(super) async fn lock(
        &self,
        info: &LockInfo,
        caller: Holder,
        ttl: Ttl,
    ) -> Result<LockResult, Problem> {
        let mut metadata = info.metadata(&caller)?;
        self.identity.stamp(&mut metadata);
        let request = Ask {
            lease_id: LockInfo::lease_id(&info.id)?,
            metadata,
            holder: info.holder(caller),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: Priority::default(),
            ttl,
            process: None,
        };
        let lease_id = request.lease_id;
        let op = LockOp::Acquire(Acquire { ask: Arc::new(request), queue: None, steal_after: None });
        for _ in 0..MAX_ATTEMPTS {
            match self.locks().apply(&self.name, &op).await? {
                // The request has the ID of another caller's lock: the server returns that ID to
                // every client that finds the state locked.
                Outcome::Granted(lease) if self.identity.must_own(&lease.ask).is_err() => {
                    return Ok(LockResult::HeldBy(LockInfo::of_lease(&lease)));
                }
                Outcome::Granted(lease) => {
                    let raised = raise_min_token(self.store, self.state, lease.token).await;
                    if let Err(error) = raised {
                        // The caller receives an error and does not know that it holds the lock, so
                        // the lock must not stay held for its full TTL (a day by default).
                        let _ = self.locks().apply(&self.name, &LockOp::Leave(Leave { lease_id })).await;
                        return Err(error.into());
                    }
                    return Ok(LockResult::Acquired);
                }
                _ => {
                    let (record, now) = self.load().await?;
                    if let Some(info) = record.and_then(|record| blocking_holder(&record, now)) {
                        return Ok(LockResult::HeldBy(info));
                    }
                }
            }
        }
        let problem =
            Problem::new("STORE_UNAVAILABLE", "the lock changed its holder too often during the request");
        Err(problem.retry_after(std::time::Duration::from_secs(1)))
    }

    /// Releases the lock with this id.
    pub(super) async fn unlock(&self, id: &str) -> Result<UnlockResult, Problem> {
        let lease_id = LockInfo::lease_id(id)?;
        let (record, now) = self.load().await?;
        if let Some(lease) = record.as_ref().and_then(|record| record.lease(&lease_id)) {
            self.identity.must_own(&lease.ask)?;
            let release = Release { lease_id, token: lease.token, at_least: None };
            if let Outcome::Released(_) = self.locks().apply(&self.name, &LockOp::Release(release)).await? {
                return Ok(UnlockResult::Released);
            }
        }
        if self.has_ended(lease_id).await? {
            return Ok(UnlockResult::Released);
        }
        let holder = record.as_ref().and_then(|record| record.live(now).next());
        Ok(holder.map_or(UnlockResult::NotHeld, |lease| UnlockResult::HeldBy(LockInfo::of_lease(lease))))
    }

    /// Releases the lock by force, or only the lease with this id if one is given.
    pub(super) async fn force_unlock(&self, id: Option<&str>, by: Holder) -> Result<UnlockResult, Problem> {
        let only = id.map(LockInfo::lease_id).transpose()?;
        let (record, now) = self.load().await?;
        let record = record.unwrap_or_else(|| LockRecord::new(self.name.clone()));
        let (mut freed, mut other) = (only.is_none(), None);
        for lease in record.live(now) {
            if only.is_some_and(|only| only != lease.ask.lease_id) {
                other = Some(LockInfo::of_lease(lease));
                continue;
            }
            let reason = Reason::new("terraform force-unlock")?;
            tracing::warn!(lock = %self.name, holder = %lease.ask.holder, %by, "a Terraform lock was released by force");
            let force = ForceRelease { token: lease.token, by: by.clone(), reason };
            let forced = self.locks().apply(&self.name, &LockOp::ForceRelease(force)).await?;
            notify_holders(self.store, &self.name, &forced).await;
            freed = true;
        }
        if let Some(record) = self.locks().get(&self.name).await? {
            // From here on writes that are still in flight are rejected.
            raise_min_token(self.store, self.state, record.token).await?;
        }
        Ok(match other {
            _ if freed => UnlockResult::Released,
            Some(other) => UnlockResult::HeldBy(other),
            None => UnlockResult::NotHeld,
        })
    }

    /// Returns the record and the current time of the store.
    pub(super) async fn load(&self) -> Result<(Option<LockRecord>, Timestamp)> {
        let record = self.locks().get(&self.name).await?;
        Ok((record, self.locks().now().await?))
    }

    /// Whether this lease was released or has expired, in which case a repeated or late UNLOCK
    /// succeeds.
    async fn has_ended(&self, lease_id: LeaseId) -> Result<bool, Error> {
        let query =
            ListEvents { lock: Some(self.name.clone()), limit: SEARCHED_EVENTS, ..ListEvents::default() };
        let events = self.locks().history(&query).await?.items;
        Ok(events.iter().any(|event| {
            event.lease_id == lease_id && matches!(event.kind, EventKind::Released | EventKind::Expired)
        }))
    }
}

/// Returns the holder, or the next waiter if there is no holder.
pub(super) fn blocking_holder(record: &LockRecord, now: Timestamp) -> Option<LockInfo> {
    let holder = record.live(now).next().map(LockInfo::of_lease);
    holder.or_else(|| record.waiting(now).next().map(LockInfo::of_ticket))
}
