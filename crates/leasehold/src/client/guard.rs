//! Holding a lock: what state it is in, learning of its loss, giving it back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::acquire::Taken;
use super::keeper::{Diary, Entry};
use super::leasehold::Inner;
use crate::error::{Error, Result};
use crate::model::{Acquire, Asked, Lease, LeaseId, LockName, LockOp, Outcome, Release, Token, Ttl};
use crate::store::{LockStore, Moment};

/// A lease that was handed over lasts only as long as its ticket did. Whoever holds it for longer than this wants the
/// whole ttl; whoever does not is spared the round trip.
const CONFIRM: Duration = Duration::from_millis(50);

/// A held lock, or several that were asked for together. Renewed in the background until it is released or dropped.
///
/// [`run`](Guard::run) is the form to prefer: it stops the work when the lease is lost, and releases when it ends.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    core: Arc<Core>,
}

/// How a guard is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Its state.
    pub state: GuardState,
    /// Until when its leases last at least, on this machine's boot clock. Nothing may be done under the lock after it.
    pub valid_until: Moment,
    /// Somebody asked the holder to stop when it can.
    pub asked: Option<Asked>,
}

/// The state of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardState {
    /// The last renewal succeeded.
    Held,
    /// The last renewal failed; the lease still lasts, and renewing goes on.
    Unsure,
    /// Over: it ended, was taken or forced away. It does not come back.
    Lost,
}

impl Guard {
    pub(super) fn new(inner: Arc<Inner>, taken: Vec<Taken>, renew_at: f64) -> Self {
        let last = taken.last().expect("a guard holds at least one lock");
        let since = last.since;
        let valid_until = taken.iter().fold(last.valid_until, |least, taken| least.min(taken.valid_until));
        let health = Health { state: GuardState::Held, valid_until, asked: None };
        let core = Arc::new(Core {
            inner,
            renew_at,
            parts: Mutex::new(taken),
            signs: Mutex::new(Signs { health, watch: None, lost: None }),
            why: Mutex::default(),
            over: AtomicBool::new(false),
            entry: Mutex::default(),
        });
        core.enter(core.inner.keeper.diary(), since);
        Self { core }
    }

    /// The fencing token, of the first lock by name if there are several: give it to whatever the work writes to.
    pub fn token(&self) -> Token {
        self.core.parts()[0].lease.token
    }

    /// The id of the lease, of the first lock by name if there are several.
    pub fn lease_id(&self) -> LeaseId {
        self.core.parts()[0].lease.ask.lease_id
    }

    /// Every lock that is held with its lease, by name.
    pub fn leases(&self) -> Vec<(LockName, Lease)> {
        self.core.parts().iter().map(|part| (part.name.clone(), part.lease.clone())).collect()
    }

    /// The state now.
    pub fn state(&self) -> GuardState {
        self.core.signs().health.state
    }

    /// Everything about the guard, now and as it changes.
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.core.watch()
    }

    /// Resolves when the lease is lost; never if it is released before.
    pub async fn lost(&self) {
        self.core.lost().cancelled().await;
    }

    /// Resolves when somebody asks the holder to stop.
    pub async fn asked(&self) -> Asked {
        let mut watch = self.watch();
        let asked = watch
            .wait_for(|health| health.asked.is_some())
            .await
            .ok()
            .and_then(|health| health.asked.clone());
        match asked {
            Some(asked) => asked,
            None => std::future::pending().await,
        }
    }

    /// Cancelled when the lease is lost: for work that is written around such a token.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core.lost().child_token()
    }

    /// Does the work while the lock is held, then releases it. If the lease is lost, the work is dropped where it
    /// stands and the call fails with [`Error::Lost`].
    pub async fn run<T>(self, work: impl AsyncFnOnce(Held) -> T) -> Result<T> {
        let (held, lost) = (Held { core: self.core.clone() }, self.core.lost());
        let done = tokio::select! {
            biased;
            () = lost.cancelled() => return Err(self.core.lost_error()),
            done = work(held) => done,
        };
        match self.release().await {
            // The work is done, and it was done in time; that nobody could be told is for the log.
            Err(error @ Error::Store { .. }) => {
                tracing::warn!(%error, "the work is done, but its lock could not be released; it ends by its time");
                Ok(done)
            }
            Err(error) => Err(error),
            Ok(()) => Ok(done),
        }
    }

    /// Makes sure that the leases last for their whole ttl from about now. One that was handed over to a waiter lasts
    /// only as long as a ticket until it is renewed, and the first of several may be nearly over when the last is had.
    /// For leases that are about to be [left](Self::leave_held).
    pub async fn confirm(&self) -> Result<()> {
        for at in 0..self.core.len() {
            self.core.confirm(at).await?;
        }
        Ok(())
    }

    /// Gives the lock back, and waits until the store has it.
    pub async fn release(self) -> Result<()> {
        self.core.release(None).await
    }

    /// Gives the lock back, but keeps everybody out until `at_least` after it was acquired: for short jobs on hosts
    /// whose clocks differ.
    pub async fn release_at_least(self, at_least: Duration) -> Result<()> {
        let at_least = Ttl::new(at_least)?;
        self.core.release(Some(at_least)).await
    }

    /// Stops renewing and forgets: the lease lasts until its time is over, or somebody renews or releases it by its id
    /// and token. For work that goes on where no guard can be.
    pub fn leave_held(self) -> Vec<(LockName, Lease)> {
        self.core.end();
        self.leases()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.core.over.load(Ordering::Acquire) {
            let core = self.core.clone();
            self.core.inner.keeper.spawn(async move {
                if let Err(error) = core.release(None).await {
                    tracing::warn!(locks = %core.names(), %error, "a dropped guard could not be released; it ends by its time");
                }
            });
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("locks", &self.core.names())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// What guarded work sees of its lease.
#[derive(Clone)]
pub struct Held {
    core: Arc<Core>,
}

impl Held {
    /// The fencing token, of the first lock by name if there are several.
    pub fn token(&self) -> Token {
        self.core.parts()[0].lease.token
    }

    /// The id of the lease, of the first lock by name if there are several.
    pub fn lease_id(&self) -> LeaseId {
        self.core.parts()[0].lease.ask.lease_id
    }

    /// Until when the lease lasts at least.
    pub fn valid_until(&self) -> Moment {
        self.core.valid_until()
    }

    /// Cancelled when the lease is lost.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core.lost().child_token()
    }
}

/// How a guard is, and those who want to be told. Most guards live too short for anybody to ask, so the means to tell
/// them are made when somebody does.
struct Signs {
    health: Health,
    watch: Option<watch::Sender<Health>>,
    lost: Option<CancellationToken>,
}

impl Signs {
    fn change(&mut self, change: impl FnOnce(&mut Health)) {
        change(&mut self.health);
        if let Some(watch) = &self.watch {
            watch.send_replace(self.health.clone());
        }
        if let (GuardState::Lost, Some(lost)) = (self.health.state, &self.lost) {
            lost.cancel();
        }
    }
}

/// What a guard, its renewals and its work share.
pub(super) struct Core {
    inner: Arc<Inner>,
    renew_at: f64,
    parts: Mutex<Vec<Taken>>,
    signs: Mutex<Signs>,
    why: Mutex<String>,
    /// Released or lost: nothing is to be renewed any more.
    over: AtomicBool,
    entry: Mutex<Option<Entry>>,
}

impl Core {
    pub(super) fn locks(&self) -> &dyn LockStore {
        self.inner.locks()
    }

    pub(super) fn len(&self) -> usize {
        self.parts().len()
    }

    pub(super) fn lease(&self, at: usize) -> (LockName, Lease) {
        let part = &self.parts()[at];
        (part.name.clone(), part.lease.clone())
    }

    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.parts().iter().map(|part| part.name.to_string()).collect();
        names.join(", ")
    }

    pub(super) fn valid_until(&self) -> Moment {
        self.signs().health.valid_until
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Enters the guard to be renewed when the set part of its time is over.
    pub(super) fn enter(self: &Arc<Self>, diary: &Diary, now: Moment) {
        let mut wait = self.valid_until().after(now).mul_f64(self.renew_at);
        if self.parts().iter().any(Taken::is_short) {
            wait = wait.min(CONFIRM);
        }
        let due = now.plus(wait);
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_over() {
            *entry = Some(diary.enter(due, Arc::downgrade(self)));
        }
    }

    pub(super) fn renewed(&self, at: usize, lease: Lease, sent: Moment) {
        let mut parts = self.parts();
        parts[at].valid_until = sent.plus(lease.expires_at.since(lease.renewed_at));
        parts[at].lease = lease;
        let valid_until = parts.iter().map(|part| part.valid_until).min();
        let asked = parts.iter().find_map(|part| part.lease.asked.clone());
        drop(parts);
        self.signs().change(|health| {
            health.valid_until = valid_until.unwrap_or(health.valid_until);
            health.asked = asked;
        });
    }

    pub(super) fn set_state(&self, state: GuardState) {
        let mut signs = self.signs();
        if signs.health.state != state && signs.health.state != GuardState::Lost {
            signs.change(|health| health.state = state);
        }
    }

    pub(super) fn lose(&self, why: &str) {
        if self.over.swap(true, Ordering::AcqRel) {
            return; // Released meanwhile: that is not a loss.
        }
        tracing::warn!(locks = %self.names(), why, "a lease was lost");
        why.clone_into(&mut self.why.lock().unwrap_or_else(PoisonError::into_inner));
        self.set_state(GuardState::Lost);
    }

    fn lost_error(&self) -> Error {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Error::Lost { lock: self.lease(0).0, why }
    }

    /// From here on nothing is renewed. Says whether it was not over before.
    fn end(&self) -> bool {
        if self.over.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(entry) = self.entry.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.inner.keeper.diary().strike(entry);
        }
        true
    }

    /// Asks once more with the same id, which gives the same lease with its whole time and is no renewal.
    async fn confirm(&self, at: usize) -> Result<()> {
        let (name, lease) = self.lease(at);
        let (sent, until) = (Moment::now(), self.parts()[at].valid_until);
        if until.after(sent) > lease.ask.ttl.as_duration().mul_f64(0.9) {
            return Ok(());
        }
        let ask = Acquire { ask: lease.ask.clone(), queue: None, steal_after: None };
        match self.locks().apply(&name, &LockOp::Acquire(ask)).await? {
            Outcome::Granted(lease) => {
                self.renewed(at, lease, sent);
                Ok(())
            }
            Outcome::Busy(conflict) => {
                let conflict = Box::new(conflict);
                Err(Error::Conflict { lock: name, conflict, waited: Duration::ZERO })
            }
            other => Err(super::leasehold::unexpected(&name, other)),
        }
    }

    async fn release(&self, at_least: Option<Ttl>) -> Result<()> {
        if !self.end() {
            return Err(self.lost_error());
        }
        let mut failed = Ok(());
        // In the reverse order of their taking; one that fails does not keep the others.
        for at in (0..self.len()).rev() {
            if let Err(error) = self.release_one(at, at_least).await {
                failed = Err(error);
            }
        }
        failed
    }

    async fn release_one(&self, at: usize, at_least: Option<Ttl>) -> Result<()> {
        let (name, lease) = self.lease(at);
        let op = LockOp::Release(Release { lease_id: lease.ask.lease_id, token: lease.token, at_least });
        let mut pause = Duration::from_millis(50);
        let mut unsure = false;
        loop {
            match self.locks().apply(&name, &op).await {
                Ok(Outcome::Released(_)) => return Ok(()),
                // The answer to an earlier try may have been lost.
                Ok(Outcome::NotHeld(_)) if unsure => return Ok(()),
                Ok(_) => {
                    return Err(Error::Lost {
                        lock: name,
                        why: "it had ended before it was released".to_owned(),
                    });
                }
                Err(error) if error.is_retryable() && Moment::now() < self.valid_until() => {
                    tracing::debug!(lock = %name, %error, "releasing again");
                    unsure = true;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn watch(&self) -> watch::Receiver<Health> {
        let mut signs = self.signs();
        let Signs { health, watch, .. } = &mut *signs;
        watch.get_or_insert_with(|| watch::Sender::new(health.clone())).subscribe()
    }

    fn lost(&self) -> CancellationToken {
        let mut signs = self.signs();
        let lost = signs.lost.get_or_insert_default().clone();
        if signs.health.state == GuardState::Lost {
            lost.cancel();
        }
        lost
    }

    fn signs(&self) -> MutexGuard<'_, Signs> {
        self.signs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Leasehold;

    #[tokio::test]
    async fn a_lease_that_is_left_held_stays_and_is_released_by_its_id_and_token() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let name = LockName::new("a").unwrap();
        let guard = leasehold.lock("a").process(None).acquire().await.unwrap();
        let left = guard.leave_held();
        let [(held, lease)] = left.as_slice() else { panic!("{left:?}") };
        leasehold.clone().close().await;
        assert_eq!(*held, name);
        assert!(leasehold.status(&name).await.unwrap().is_locked);
        let (id, token) = (lease.ask.lease_id, lease.token);
        leasehold.renew(&name, id, token, None).await.unwrap();
        assert!(!leasehold.release(&name, id, token).await.unwrap().is_locked);
    }

    #[tokio::test]
    async fn a_lease_that_was_handed_over_is_confirmed_for_its_whole_time() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let first = leasehold.lock("a").acquire().await.unwrap();
        let ttl = Duration::from_mins(1);
        let next = leasehold.lock("a").ttl(ttl).process(None).wait(Duration::from_secs(10)).acquire();
        let (next, released) = tokio::join!(next, async {
            tokio::task::yield_now().await;
            first.release().await
        });
        released.unwrap();
        let next = next.unwrap();
        let token = next.token();
        next.confirm().await.unwrap();
        let (_, lease) = next.leave_held().remove(0);
        assert_eq!(lease.expires_at.since(lease.renewed_at), ttl);
        assert_eq!(lease.token, token);
    }

    #[tokio::test]
    async fn a_lease_that_is_left_held_is_not_renewed() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let name = LockName::new("a").unwrap();
        let lock = leasehold.lock("a").ttl(Duration::from_millis(300)).renew_at(0.05);
        let (_, lease) = lock.acquire().await.unwrap().leave_held().remove(0);
        let mut status = leasehold.status(&name).await.unwrap();
        while status.is_locked {
            tokio::time::sleep(Duration::from_millis(10)).await;
            status = leasehold.status(&name).await.unwrap();
        }
        // At most the one renewal that was under way when it was left.
        assert!(status.holders[0].renewals <= lease.renewals + 1, "{status:?}");
    }
}
