//! Guard of held locks: its state, the notification of a loss, the release.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::acquire::Taken;
use super::in_doubt::{self, Released};
use super::keeper::{Diary, Entry};
use super::leasehold::Inner;
use super::notices::Notices;
use super::run_error::RunError;
use crate::error::{Error, Result};
use crate::model::{Acquire, Asked, Lease, LeaseId, LockName, LockOp, Outcome, Release, Token, Ttl};
use crate::store::{BootInstant, LockStore};

/// Maximum delay before a lease that was granted to a ticket is extended from the ticket lifetime to its full
/// TTL. A holder that releases earlier saves the round trip.
const CONFIRM: Duration = Duration::from_millis(50);
/// Maximum time for which the release of each remaining lease of a lost guard is retried.
const REST: Duration = Duration::from_secs(2);

/// Guard of one held lock, or of several that were acquired together. Its leases are renewed in the
/// background until the guard is released or dropped.
///
/// Prefer [`run`](Guard::run): it stops the work if the lease is lost, and releases the lock at the end.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    core: Arc<Core>,
}

/// Status of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardStatus {
    /// State of the guard.
    pub state: GuardState,
    /// End of the guaranteed lifetime of all leases, on the boot clock. No work may be done under the lock
    /// after it.
    pub valid_until: BootInstant,
    /// Request to the holder to release the lock, if there is one.
    pub asked: Option<Asked>,
}

/// State of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardState {
    /// The last renewal succeeded.
    Held,
    /// The last renewal failed; the lease has not expired, and renewal is being retried.
    Unsure,
    /// The lease ended, was taken over or was released by force. This state is final.
    Lost,
}

impl Guard {
    /// Creates a guard of one lease and renews it from now on. If the lease has expired, the guard is lost at
    /// once.
    pub(super) fn new(inner: Arc<Inner>, first: Taken, Renewals { renew_at, max_hold }: Renewals) -> Self {
        let since = first.since;
        let end = max_hold.map(|longest| End { at: since.plus(longest.as_duration()), longest });
        let valid_until = end.map_or(first.valid_until, |end| end.at.min(first.valid_until));
        let health = GuardStatus { state: GuardState::Held, valid_until, asked: None };
        let core = Arc::new(Core {
            inner,
            renew_at,
            end,
            parts: Mutex::new(vec![first]),
            signs: Mutex::new(Signs { health, watch: None, lost: None }),
            loss: Mutex::default(),
            over: AtomicBool::new(false),
            freed: AtomicBool::new(false),
            renewing: AtomicBool::new(false),
            notices: Mutex::default(),
            entry: Mutex::default(),
        });
        core.enter(core.inner.keeper.diary(), since);
        Self { core }
    }

    /// Adds a lease to the guard.
    pub(super) fn add(&self, taken: Taken) {
        let since = taken.since;
        self.core.add(taken);
        self.core.enter(self.core.inner.keeper.diary(), since);
    }

    /// Returns whether every lease is still guaranteed to last. If not, the guard is lost from here on.
    pub(super) fn is_valid(&self) -> bool {
        if BootInstant::now() >= self.core.valid_until() {
            self.core.lose_at_deadline();
            return false;
        }
        self.state() != GuardState::Lost
    }

    /// Releases the remaining leases of a lost guard in the background. The receiver resolves at the end of
    /// that.
    pub(super) fn give_up(self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        self.core.release_rest(Some(done));
        receiver
    }

    /// Returns the fencing token (of the first lock by name), for every resource that the work writes to.
    pub fn token(&self) -> Token {
        self.core.parts()[0].lease.token
    }

    /// Returns the id of the lease; with several locks, that of the first by name.
    pub fn lease_id(&self) -> LeaseId {
        self.core.parts()[0].lease.ask.lease_id
    }

    /// Returns every held lock with its lease, in the order of the names.
    pub fn leases(&self) -> Vec<(LockName, Lease)> {
        self.core.parts().iter().map(|part| (part.name.clone(), part.lease.clone())).collect()
    }

    /// Returns the current state.
    pub fn state(&self) -> GuardState {
        self.core.signs().health.state
    }

    /// Returns a watch on the status of the guard, with the current status and all changes.
    pub fn watch(&self) -> watch::Receiver<GuardStatus> {
        self.core.watch()
    }

    /// Resolves when the lease is lost; never if it is released before.
    pub async fn lost(&self) {
        self.core.lost().cancelled().await;
    }

    /// Returns the reason of the loss if the lease was lost.
    pub fn loss(&self) -> Option<Error> {
        (self.state() == GuardState::Lost).then(|| self.core.lost_error())
    }

    /// Resolves when a caller requests the release of the lock.
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

    /// Returns a token that is cancelled when the lease is lost, for work that is controlled by such a token.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core.lost().child_token()
    }

    /// Runs the work while the lock is held, then releases the lock.
    ///
    /// If the lease is lost in the meantime, the work is dropped at its current await point. If the loss is
    /// detected only after the work has ended, the error contains the value that the work returned: the work
    /// may have run concurrently with another holder.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
    /// let guard = leasehold.lock("report").acquire().await?;
    /// match guard.run(async |lease| lease.token()).await {
    ///     Ok(token) => println!("done under token {token}"),
    ///     Err(lost) => match lost.value {
    ///         Some(token) => println!("done under token {token}, but {}", lost.error),
    ///         None => println!("stopped: {}", lost.error),
    ///     },
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run<T>(self, work: impl AsyncFnOnce(LeaseHandle) -> T) -> Result<T, RunError<T>> {
        let (held, lost) = (LeaseHandle { core: self.core.clone() }, self.core.lost());
        let value = tokio::select! {
            biased;
            () = lost.cancelled() => return Err(RunError { error: self.core.lost_error(), value: None }),
            value = work(held) => value,
        };
        // Checked without the store: work done after that time was not done under the lock.
        if !self.is_valid() {
            return Err(RunError { error: self.core.lost_error(), value: Some(value) });
        }
        match self.release().await {
            // The work ended within the lease. Log the failed release instead of failing the call.
            Err(error @ Error::Store { .. }) => {
                tracing::warn!(%error, "the work is done, but its lock could not be released; it ends by its time");
                Ok(value)
            }
            Err(error) => Err(RunError { error, value: Some(value) }),
            Ok(()) => Ok(value),
        }
    }

    /// Ensures that the leases last for their full TTL from about now. A lease that was granted to a ticket
    /// lasts only as long as the ticket until it is renewed, and the first of several leases may be close to
    /// its expiry when the last one is granted. For leases that are about to be [detached](Self::detach).
    pub async fn confirm(&self) -> Result<()> {
        for at in 0..self.core.len() {
            self.core.confirm(at).await?;
        }
        Ok(())
    }

    /// Releases the lock and waits for the confirmation of the store.
    pub async fn release(self) -> Result<()> {
        self.core.release(None).await
    }

    /// Releases the lock, but blocks it until `at_least` after its acquisition: for short jobs on hosts whose
    /// clocks differ.
    pub async fn release_at_least(self, at_least: Duration) -> Result<()> {
        let at_least = Ttl::new(at_least)?;
        self.core.release(Some(at_least)).await
    }

    /// Stops the renewals and returns the leases. They stay held until they expire, unless a caller renews or
    /// releases them by id and token. For work that continues where no guard can exist.
    pub fn detach(self) -> Vec<(LockName, Lease)> {
        self.core.end();
        self.core.freed.store(true, Ordering::Release);
        self.leases()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.core.is_over() {
            return self.core.release_rest(None);
        }
        let core = self.core.clone();
        self.core.inner.keeper.spawn(async move {
            if let Err(error) = core.release(None).await {
                tracing::warn!(locks = %core.names(), %error, "a dropped guard could not be released; it ends by its time");
            }
        });
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

/// View of the lease for the work inside [`Guard::run`].
#[derive(Clone)]
pub struct LeaseHandle {
    core: Arc<Core>,
}

impl LeaseHandle {
    /// Returns the fencing token; with several locks, that of the first by name.
    pub fn token(&self) -> Token {
        self.core.parts()[0].lease.token
    }

    /// Returns the id of the lease; with several locks, that of the first by name.
    pub fn lease_id(&self) -> LeaseId {
        self.core.parts()[0].lease.ask.lease_id
    }

    /// Returns the time until which the lease is guaranteed to last.
    pub fn valid_until(&self) -> BootInstant {
        self.core.valid_until()
    }

    /// Returns a token that is cancelled when the lease is lost.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core.lost().child_token()
    }
}

/// Status of a guard and its observers. Most guards have none, so the channels are created on first use.
struct Signs {
    health: GuardStatus,
    watch: Option<watch::Sender<GuardStatus>>,
    lost: Option<CancellationToken>,
}

impl Signs {
    fn change(&mut self, change: impl FnOnce(&mut GuardStatus)) {
        change(&mut self.health);
        if let Some(watch) = &self.watch {
            watch.send_replace(self.health.clone());
        }
        if let (GuardState::Lost, Some(lost)) = (self.health.state, &self.lost) {
            lost.cancel();
        }
    }
}

/// State that a guard, its renewals and its work share.
pub(super) struct Core {
    pub(super) inner: Arc<Inner>,
    renew_at: f64,
    /// Time at which the guard is lost even if its leases last longer.
    end: Option<End>,
    parts: Mutex<Vec<Taken>>,
    signs: Mutex<Signs>,
    loss: Mutex<Option<Loss>>,
    /// Whether the guard has been released or lost: its leases are not renewed any more.
    over: AtomicBool,
    /// After a loss: whether the remaining leases have been released, or are intentionally left held.
    freed: AtomicBool,
    /// Whether a renewal is in progress.
    renewing: AtomicBool,
    pub(super) notices: Mutex<Notices>,
    entry: Mutex<Option<Entry>>,
}

/// Renewal options of a guard.
pub(super) struct Renewals {
    /// Fraction of the TTL after which the leases are renewed.
    pub(super) renew_at: f64,
    /// Maximum time from the grant, after which the guard is lost.
    pub(super) max_hold: Option<Ttl>,
}

/// Time limit that the caller set for a guard.
#[derive(Clone, Copy)]
struct End {
    at: BootInstant,
    longest: Ttl,
}

/// Reason of a loss.
struct Loss {
    lock: LockName,
    why: String,
    /// Index of the lease that the store reported as ended.
    gone: Option<usize>,
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

    pub(super) fn valid_until(&self) -> BootInstant {
        self.signs().health.valid_until
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Schedules the next renewal after the configured fraction of the remaining time. A guard has one timer.
    pub(super) fn enter(self: &Arc<Self>, diary: &Diary, now: BootInstant) {
        let mut wait = self.valid_until().after(now).mul_f64(self.renew_at);
        if self.parts().iter().any(Taken::is_short) {
            wait = wait.min(CONFIRM);
        }
        if self.lasts_to_its_end() {
            wait = self.valid_until().after(now);
        }
        self.enter_at(diary, self.due_with_notices(now, now.plus(wait)));
    }

    /// Returns whether no renewal is needed because every lease lasts until the time limit of the caller.
    fn lasts_to_its_end(&self) -> bool {
        let last = self.parts().iter().map(|part| part.valid_until).min();
        self.end.zip(last).is_some_and(|(end, last)| end.at <= last)
    }

    pub(super) fn enter_at(self: &Arc<Self>, diary: &Diary, due: BootInstant) {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(earlier) = entry.take() {
            diary.strike(earlier);
        }
        if !self.is_over() {
            *entry = Some(diary.enter(due, Arc::downgrade(self)));
        }
    }

    /// Handles the timer of a guard; returns whether the guard is to be renewed now. Marks the guard as lost
    /// if its deadline has passed. Otherwise sets the timer to the deadline first, so that the guard is lost
    /// on time whatever the result of that renewal.
    pub(super) fn is_to_be_renewed(self: &Arc<Self>, diary: &Diary, now: BootInstant) -> bool {
        let valid_until = self.valid_until();
        if self.is_over() {
            return false;
        }
        if now >= valid_until {
            self.lose_at_deadline();
            return false;
        }
        self.enter_at(diary, valid_until);
        !self.renewing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn renewal_ended(&self) {
        self.renewing.store(false, Ordering::Release);
    }

    fn add(&self, taken: Taken) {
        let valid_until = taken.valid_until;
        let mut parts = self.parts();
        parts.push(taken);
        // While `parts` is locked: a renewal that ends now must not set a time that ignores this lease.
        self.signs().change(|health| health.valid_until = health.valid_until.min(valid_until));
    }

    pub(super) fn renewed(&self, at: usize, lease: Lease, sent: BootInstant) {
        let mut parts = self.parts();
        parts[at].valid_until = sent.plus(lease.expires_at.since(lease.renewed_at));
        parts[at].lease = lease;
        let valid_until = parts.iter().map(|part| part.valid_until).chain(self.end.map(|end| end.at)).min();
        let asked = parts.iter().find_map(|part| part.lease.asked.clone());
        let mut signs = self.signs();
        if signs.health.state != GuardState::Lost {
            signs.change(|health| {
                health.valid_until = valid_until.unwrap_or(health.valid_until);
                health.asked = asked;
            });
        }
    }

    pub(super) fn set_state(&self, state: GuardState) {
        let mut signs = self.signs();
        if signs.health.state != state && signs.health.state != GuardState::Lost {
            signs.change(|health| health.state = state);
        }
    }

    /// Marks the guard as lost because the lease on this lock is lost. The other leases stay held until the
    /// guard is dropped or released, because its work may not have stopped yet, but they are not renewed any
    /// more. `gone` is the index of the lease that the store reported as ended.
    pub(super) fn lose(&self, lock: LockName, why: String, gone: Option<usize>) {
        let mut loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        if self.over.swap(true, Ordering::AcqRel) {
            return; // Released in the meantime: not a loss.
        }
        let told = (lock.clone(), why.clone());
        *loss = Some(Loss { lock, why, gone });
        self.set_state(GuardState::Lost);
        drop(loss);
        // Logged after the mutex is unlocked, because the log subscriber may be slow.
        tracing::warn!(lock = %told.0, why = told.1, "a lease was lost");
    }

    pub(super) fn lose_at_deadline(&self) {
        let first = self.parts().iter().min_by_key(|part| part.valid_until).map(|part| part.name.clone());
        if let Some(lock) = first {
            let why = match self.end.filter(|end| end.at <= BootInstant::now()) {
                Some(End { longest, .. }) => {
                    format!("it was held for {longest}, the longest that its holder allowed")
                }
                None => "it could not be renewed in time".to_owned(),
            };
            self.lose(lock, why, None);
        }
    }

    fn lost_error(&self) -> Error {
        let loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        match &*loss {
            Some(Loss { lock, why, .. }) => Error::Lost { lock: lock.clone(), why: why.clone() },
            None => Error::Lost { lock: self.lease(0).0, why: "it has been released".to_owned() },
        }
    }

    /// Releases in the background every lease of a lost guard that the store has not reported as ended. A
    /// renewal that did not succeed in time may have been executed by the store nevertheless.
    fn release_rest(self: &Arc<Self>, done: Option<oneshot::Sender<()>>) {
        let gone = match &*self.loss.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(loss) => loss.gone,
            None => return,
        };
        if self.freed.swap(true, Ordering::AcqRel) {
            return;
        }
        let core = self.clone();
        self.inner.keeper.spawn(async move {
            for at in (0..core.len()).rev().filter(|at| Some(*at) != gone) {
                let (name, release) = core.release_of(at, None);
                let until = BootInstant::now().plus(REST);
                if let Err(error) = in_doubt::release(core.locks(), &name, &release, until).await {
                    tracing::debug!(lock = %name, %error, "a lease of a lost guard was not released; it ends by its time");
                }
            }
            drop(done);
        });
    }

    /// Ends the renewals. Returns `false` if the guard had already been released or lost.
    fn end(&self) -> bool {
        if self.over.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(entry) = self.entry.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.inner.keeper.diary().strike(entry);
        }
        self.unsubscribe();
        true
    }

    /// Repeats the acquire with the same id: the lease gets its full TTL, and the store counts no renewal.
    async fn confirm(&self, at: usize) -> Result<()> {
        let (name, lease) = self.lease(at);
        let (sent, until) = (BootInstant::now(), self.parts()[at].valid_until);
        if until.after(sent) > lease.ask.ttl.as_duration().mul_f64(0.9) {
            return Ok(());
        }
        let ask = Acquire { ask: lease.ask.clone(), queue: None, steal_after: None };
        match self.locks().apply(&name, &LockOp::Acquire(ask)).await? {
            Outcome::Granted(lease) => {
                self.renewed(at, lease, sent);
                Ok(())
            }
            Outcome::Conflict(conflict) => {
                let conflict = Box::new(conflict);
                Err(Error::Conflict { lock: name, conflict, waited: Duration::ZERO })
            }
            other => Err(super::leasehold::unexpected(&name, other)),
        }
    }

    async fn release(self: &Arc<Self>, at_least: Option<Ttl>) -> Result<()> {
        if !self.end() {
            self.release_rest(None);
            return Err(self.lost_error());
        }
        let mut failed = Ok(());
        // In reverse order of acquisition; a failed release does not prevent the others.
        for at in (0..self.len()).rev() {
            if let Err(error) = self.release_one(at, at_least).await {
                failed = Err(error);
            }
        }
        failed
    }

    async fn release_one(&self, at: usize, at_least: Option<Ttl>) -> Result<()> {
        let (name, release) = self.release_of(at, at_least);
        match in_doubt::release(self.locks(), &name, &release, self.valid_until()).await? {
            Released::Yes(_) => Ok(()),
            Released::Ended(_) => {
                let (id, token) = (release.lease_id, release.token);
                let why = in_doubt::why_it_ended(self.locks(), &name, id, token).await;
                let why = why.unwrap_or_else(|| "it had ended before it was released".to_owned());
                Err(Error::Lost { lock: name, why })
            }
        }
    }

    fn release_of(&self, at: usize, at_least: Option<Ttl>) -> (LockName, Release) {
        let (name, lease) = self.lease(at);
        (name, Release { lease_id: lease.ask.lease_id, token: lease.token, at_least })
    }

    fn watch(&self) -> watch::Receiver<GuardStatus> {
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

    pub(super) fn parts(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
