//! Holding a lock: what state it is in, learning of its loss, giving it back.

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
use crate::store::{LockStore, Moment};

/// A lease that was handed over lasts only as long as its ticket did. Whoever holds it for longer than this wants the
/// whole ttl; whoever does not is spared the round trip.
const CONFIRM: Duration = Duration::from_millis(50);
/// How long the leases that are left of a lost guard are tried to be released.
const REST: Duration = Duration::from_secs(2);

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
    /// A guard of one lease, which is renewed from now on. Lost from the start if the lease has ended already.
    pub(super) fn new(inner: Arc<Inner>, first: Taken, Renewals { renew_at, max_hold }: Renewals) -> Self {
        let since = first.since;
        let end = max_hold.map(|longest| End { at: since.plus(longest.as_duration()), longest });
        let valid_until = end.map_or(first.valid_until, |end| end.at.min(first.valid_until));
        let health = Health { state: GuardState::Held, valid_until, asked: None };
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

    /// Holds one more lease.
    pub(super) fn add(&self, taken: Taken) {
        let since = taken.since;
        self.core.add(taken);
        self.core.enter(self.core.inner.keeper.diary(), since);
    }

    /// Whether every lease can still be counted on. If not, the guard is lost from here on.
    pub(super) fn is_valid(&self) -> bool {
        if Moment::now() >= self.core.valid_until() {
            self.core.lose_at_deadline();
            return false;
        }
        self.state() != GuardState::Lost
    }

    /// Releases what is left of a lost guard in the background. The receiver ends when that is done.
    pub(super) fn give_up(self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        self.core.release_rest(Some(done));
        receiver
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

    /// Why the lease was lost, if it was.
    pub fn loss(&self) -> Option<Error> {
        (self.state() == GuardState::Lost).then(|| self.core.lost_error())
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

    /// Does the work while the lock is held, then releases it.
    ///
    /// If the lease is lost meanwhile, the work is dropped where it stands. If the loss is found out only when the work
    /// has ended, the error has what the work returned: it may have been done beside another holder.
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
    pub async fn run<T>(self, work: impl AsyncFnOnce(Held) -> T) -> Result<T, RunError<T>> {
        let (held, lost) = (Held { core: self.core.clone() }, self.core.lost());
        let value = tokio::select! {
            biased;
            () = lost.cancelled() => return Err(RunError { error: self.core.lost_error(), value: None }),
            value = work(held) => value,
        };
        // Also if the store cannot be asked: what was done after that moment was not done under the lock.
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
    pub(super) inner: Arc<Inner>,
    renew_at: f64,
    /// The guard is lost at this moment, whether its leases last or not.
    end: Option<End>,
    parts: Mutex<Vec<Taken>>,
    signs: Mutex<Signs>,
    loss: Mutex<Option<Loss>>,
    /// Released or lost: nothing is to be renewed any more.
    over: AtomicBool,
    /// After a loss: whatever is left has been released, or is left held on purpose.
    freed: AtomicBool,
    /// A renewal is under way.
    renewing: AtomicBool,
    pub(super) notices: Mutex<Notices>,
    entry: Mutex<Option<Entry>>,
}

/// How the leases of a guard are renewed.
pub(super) struct Renewals {
    /// The part of the ttl after which they are renewed.
    pub(super) renew_at: f64,
    /// The guard is lost after this time.
    pub(super) max_hold: Option<Ttl>,
}

/// The end that the caller set for a guard.
#[derive(Clone, Copy)]
struct End {
    at: Moment,
    longest: Ttl,
}

/// How a lease was lost.
struct Loss {
    lock: LockName,
    why: String,
    /// The lease of which the store says that it is gone.
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

    pub(super) fn valid_until(&self) -> Moment {
        self.signs().health.valid_until
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Enters the guard to be renewed when the set part of its time is over. There is one entry for each guard.
    pub(super) fn enter(self: &Arc<Self>, diary: &Diary, now: Moment) {
        let mut wait = self.valid_until().after(now).mul_f64(self.renew_at);
        if self.parts().iter().any(Taken::is_short) {
            wait = wait.min(CONFIRM);
        }
        if self.lasts_to_its_end() {
            wait = self.valid_until().after(now);
        }
        self.enter_at(diary, self.due_with_notices(now, now.plus(wait)));
    }

    /// Whether every lease lasts until the end that the caller set: then there is nothing to renew.
    fn lasts_to_its_end(&self) -> bool {
        let last = self.parts().iter().map(|part| part.valid_until).min();
        self.end.zip(last).is_some_and(|(end, last)| end.at <= last)
    }

    pub(super) fn enter_at(self: &Arc<Self>, diary: &Diary, due: Moment) {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(earlier) = entry.take() {
            diary.strike(earlier);
        }
        if !self.is_over() {
            *entry = Some(diary.enter(due, Arc::downgrade(self)));
        }
    }

    /// What is to be done about a guard whose entry is due: true if it is to be renewed now. Whatever becomes of that
    /// renewal, the guard is entered for its deadline, and lost when that has come.
    pub(super) fn is_to_be_renewed(self: &Arc<Self>, diary: &Diary, now: Moment) -> bool {
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
        // With the parts locked: a renewal that ends now must not set a time that leaves this one out.
        self.signs().change(|health| health.valid_until = health.valid_until.min(valid_until));
    }

    pub(super) fn renewed(&self, at: usize, lease: Lease, sent: Moment) {
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

    /// The lease on this lock is lost, and with it the guard. The others stay held until the guard is dropped or
    /// released, because its work may not have stopped yet; but they are not renewed any more. `gone` is the lease of
    /// which the store says that it has ended.
    pub(super) fn lose(&self, lock: LockName, why: String, gone: Option<usize>) {
        let mut loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        if self.over.swap(true, Ordering::AcqRel) {
            return; // Released meanwhile: that is not a loss.
        }
        let told = (lock.clone(), why.clone());
        *loss = Some(Loss { lock, why, gone });
        self.set_state(GuardState::Lost);
        drop(loss);
        // Only now: the subscriber of the log may be slow.
        tracing::warn!(lock = %told.0, why = told.1, "a lease was lost");
    }

    pub(super) fn lose_at_deadline(&self) {
        let first = self.parts().iter().min_by_key(|part| part.valid_until).map(|part| part.name.clone());
        if let Some(lock) = first {
            let why = match self.end.filter(|end| end.at <= Moment::now()) {
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

    /// Releases in the background what is left of a guard that was lost: every lease of which the store has not said that
    /// it is gone. One that could not be renewed in time may have been renewed all the same.
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
                let until = Moment::now().plus(REST);
                if let Err(error) = in_doubt::release(core.locks(), &name, &release, until).await {
                    tracing::debug!(lock = %name, %error, "a lease of a lost guard was not released; it ends by its time");
                }
            }
            drop(done);
        });
    }

    /// From here on nothing is renewed. Says whether it was not over before.
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

    async fn release(self: &Arc<Self>, at_least: Option<Ttl>) -> Result<()> {
        if !self.end() {
            self.release_rest(None);
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

    pub(super) fn parts(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
