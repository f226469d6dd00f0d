//! Locking, unlocking, and unlocking by force.

use std::sync::Arc;

use leasehold::model::{
    Acquire, Ask, EventKind, ForceRelease, Holder, LeaseId, Leave, LockName, LockOp, LockRecord, Mode,
    Outcome, Priority, Reason, Release, Slots, Timestamp, Ttl,
};
use leasehold::store::{ListEvents, LockStore, Store, notify_holders};
use leasehold::{Error, Result};

use super::info::LockInfo;
use super::state::raise_token;
use crate::access::Who;
use crate::problem::Problem;

/// A lock that ends while we look at who has it is asked for again.
const TRIES: u32 = 5;
/// So many events are looked through for the end of a lease.
const EVENTS: u32 = 50;

/// The lock of a state.
pub(super) struct StateLock<'a> {
    pub(super) store: &'a dyn Store,
    /// The state's name.
    pub(super) state: &'a str,
    /// The lock's.
    pub(super) name: LockName,
    /// Who asks.
    pub(super) who: &'a Who,
}

/// What came of locking.
pub(super) enum Locked {
    /// It is the caller's.
    Yes,
    /// This one has it, or is next.
    By(LockInfo),
}

/// What came of unlocking.
pub(super) enum Unlocked {
    /// Nobody with that id has it any more.
    Yes,
    /// This one has it, who is another.
    By(LockInfo),
    /// Nobody has it, and that id never had.
    Never,
}

impl StateLock<'_> {
    fn locks(&self) -> &dyn LockStore {
        self.store.locks()
    }

    /// Takes the lock. The same id again is the same lock.
    pub(super) async fn lock(&self, info: &LockInfo, caller: Holder, ttl: Ttl) -> Result<Locked, Problem> {
        let mut metadata = info.metadata(&caller)?;
        self.who.stamp(&mut metadata);
        let ask = Ask {
            lease_id: LockInfo::lease_id(&info.id)?,
            metadata,
            holder: info.holder(caller),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: Priority::default(),
            ttl,
            process: None,
        };
        let lease_id = ask.lease_id;
        let op = LockOp::Acquire(Acquire { ask: Arc::new(ask), queue: None, steal_after: None });
        for _ in 0..TRIES {
            match self.locks().apply(&self.name, &op).await? {
                // The ID of somebody else's lock, as it is told to whoever finds the state locked.
                Outcome::Granted(lease) if self.who.must_own(&lease.ask).is_err() => {
                    return Ok(Locked::By(LockInfo::of_lease(&lease)));
                }
                Outcome::Granted(lease) => {
                    let raised = raise_token(self.store, self.state, lease.token).await;
                    if let Err(error) = raised {
                        // Whoever does not hear that the lock is theirs must not hold it for a day.
                        let _ = self.locks().apply(&self.name, &LockOp::Leave(Leave { lease_id })).await;
                        return Err(error.into());
                    }
                    return Ok(Locked::Yes);
                }
                _ => {
                    let (record, now) = self.look().await?;
                    if let Some(info) = record.and_then(|record| in_the_way(&record, now)) {
                        return Ok(Locked::By(info));
                    }
                }
            }
        }
        let problem = Problem::new("STORE_UNAVAILABLE", "this lock changes hands too fast to be taken");
        Err(problem.retry_after(std::time::Duration::from_secs(1)))
    }

    /// Gives the lock of this id back.
    pub(super) async fn unlock(&self, id: &str) -> Result<Unlocked, Problem> {
        let lease_id = LockInfo::lease_id(id)?;
        let (record, now) = self.look().await?;
        if let Some(lease) = record.as_ref().and_then(|record| record.lease(&lease_id)) {
            self.who.must_own(&lease.ask)?;
            let release = Release { lease_id, token: lease.token, at_least: None };
            if let Outcome::Released(_) = self.locks().apply(&self.name, &LockOp::Release(release)).await? {
                return Ok(Unlocked::Yes);
            }
        }
        if self.has_ended(lease_id).await? {
            return Ok(Unlocked::Yes);
        }
        let holder = record.as_ref().and_then(|record| record.live(now).next());
        Ok(holder.map_or(Unlocked::Never, |lease| Unlocked::By(LockInfo::of_lease(lease))))
    }

    /// Takes the lock away from whoever has it; or only from the holder with this id.
    pub(super) async fn force(&self, id: Option<&str>, by: Holder) -> Result<Unlocked, Problem> {
        let only = id.map(LockInfo::lease_id).transpose()?;
        let (record, now) = self.look().await?;
        let record = record.unwrap_or_else(|| LockRecord::new(self.name.clone()));
        let (mut freed, mut other) = (only.is_none(), None);
        for lease in record.live(now) {
            if only.is_some_and(|only| only != lease.ask.lease_id) {
                other = Some(LockInfo::of_lease(lease));
                continue;
            }
            let reason = Reason::new("terraform force-unlock")?;
            tracing::warn!(lock = %self.name, holder = %lease.ask.holder, %by, "a Terraform lock is taken by force");
            let force = ForceRelease { token: lease.token, by: by.clone(), reason };
            let forced = self.locks().apply(&self.name, &LockOp::ForceRelease(force)).await?;
            notify_holders(self.store, &self.name, &forced).await;
            freed = true;
        }
        if let Some(record) = self.locks().get(&self.name).await? {
            // A write that is on its way comes too late from here on.
            raise_token(self.store, self.state, record.token).await?;
        }
        Ok(match other {
            _ if freed => Unlocked::Yes,
            Some(other) => Unlocked::By(other),
            None => Unlocked::Never,
        })
    }

    /// The record, and the store's time.
    pub(super) async fn look(&self) -> Result<(Option<LockRecord>, Timestamp)> {
        let record = self.locks().get(&self.name).await?;
        Ok((record, self.locks().now().await?))
    }

    /// Whether this lease was given back, or came to its end: then an UNLOCK that is sent again, or late, has what it wants.
    async fn has_ended(&self, lease_id: LeaseId) -> Result<bool, Error> {
        let ask = ListEvents { lock: Some(self.name.clone()), limit: EVENTS, ..ListEvents::default() };
        let events = self.locks().history(&ask).await?.items;
        Ok(events.iter().any(|event| {
            event.lease_id == lease_id && matches!(event.kind, EventKind::Released | EventKind::Expired)
        }))
    }
}

/// Who has it, or who is next.
pub(super) fn in_the_way(record: &LockRecord, now: Timestamp) -> Option<LockInfo> {
    let holder = record.live(now).next().map(LockInfo::of_lease);
    holder.or_else(|| record.waiting(now).next().map(LockInfo::of_ticket))
}
