//! State that a guard, its renewals and its work share: leases, status, loss, release.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::in_doubt;
use super::notifications::Notifications;
use crate::client::background::{RenewalTimers, TimerKey};
use crate::client::context::Inner;
use crate::error::{Error, Result};
use crate::model::{Acquire, Acquired, Lease, LockName, Queued, Release, StopRequest, Ttl};
use crate::store::{BootInstant, LockStore, OnNotice};

/// Maximum delay before a lease that was granted to a ticket is extended from the ticket lifetime
/// to its full TTL. A holder that releases earlier saves the round trip.
const CONFIRM_AFTER: Duration = Duration::from_millis(50);
/// Minimum time for which the release of a lease is retried in the background, even if the lease has ended.
const BACKGROUND_RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Status of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardStatus {
    /// State of the guard.
    pub state: GuardState,
    /// End of the guaranteed lifetime of all leases, on the boot clock. No work may be done under
    /// the lock after it.
    pub valid_until: BootInstant,
    /// Request to the holder to release the lock, if there is one.
    pub release_request: Option<StopRequest>,
}

/// State of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardState {
    /// The last renewal succeeded.
    Held,
    /// The last renewal failed; the lease has not expired, and renewal is being retried.
    Uncertain,
    /// The lease ended, was taken over or was released by force. This state is final.
    Lost,
}

/// Acquired lease and the time until which this process may rely on it.
pub(super) struct AcquiredLease {
    pub(super) name: LockName,
    pub(super) lease: Lease,
    pub(super) valid_until: BootInstant,
    /// Time at which this process received the lease.
    pub(super) since: BootInstant,
}

impl AcquiredLease {
    /// Returns whether the lease lasts for less than its TTL because it was granted to a ticket.
    pub(super) fn is_short(&self) -> bool {
        self.lease.expires_at.since(self.lease.renewed_at) < self.lease.request.ttl.as_duration()
    }
}

/// Status of a guard and its observers. Most guards have none, so the channels are created on first
/// use.
pub(super) struct GuardNotifier {
    pub(super) status: GuardStatus,
    watch: Option<watch::Sender<GuardStatus>>,
    lost: Option<CancellationToken>,
}

impl GuardNotifier {
    fn change(&mut self, change: impl FnOnce(&mut GuardStatus)) {
        change(&mut self.status);
        if let Some(watch) = &self.watch {
            watch.send_replace(self.status.clone());
        }
        if let (GuardState::Lost, Some(lost)) = (self.status.state, &self.lost) {
            lost.cancel();
        }
    }
}

pub(super) struct Core {
    pub(super) inner: Arc<Inner>,
    /// Fraction of the TTL after which the leases are renewed.
    renew_at: f64,
    /// Time at which the guard is lost even if its leases last longer.
    max_hold: Option<MaxHold>,
    leases: Mutex<Vec<AcquiredLease>>,
    notifier: Mutex<GuardNotifier>,
    lost_reason: Mutex<Option<Loss>>,
    /// Whether the guard has been released or lost: its leases are not renewed any more.
    closed: AtomicBool,
    /// After a loss: whether the remaining leases have been released, or are intentionally left held.
    pub(super) released: AtomicBool,
    renewing: AtomicBool,
    notifications: Mutex<Notifications>,
    timer: Mutex<Option<TimerKey>>,
}

/// Facts that determine when a guard is renewed next.
struct RenewalTiming {
    valid_until: BootInstant,
    /// Fraction of the remaining time after which the leases are renewed.
    renew_at: f64,
    /// Whether a lease lasts for less than its TTL.
    is_short: bool,
    /// Whether every lease lasts until the time limit of the caller.
    ends_at_limit: bool,
}

impl RenewalTiming {
    fn next(&self, now: BootInstant) -> BootInstant {
        if self.ends_at_limit || is_planted!(RenewsLate) {
            return self.valid_until.max(now);
        }
        let wait = self.valid_until.after(now).mul_f64(self.renew_at);
        now.plus(if self.is_short { wait.min(CONFIRM_AFTER) } else { wait })
    }
}

#[derive(Clone, Copy)]
struct MaxHold {
    ends_at: BootInstant,
    duration: Ttl,
}

struct Loss {
    lock: LockName,
    reason: String,
    /// Index of the lease that the store reported as ended.
    ended: Option<usize>,
}

impl Core {
    /// Creates the state of a guard of one lease and schedules the first renewal.
    pub(super) fn start(
        inner: Arc<Inner>,
        first: AcquiredLease,
        renew_at: f64,
        max_hold: Option<Ttl>,
    ) -> Arc<Self> {
        let (since, is_short, lasts_until) = (first.since, first.is_short(), first.valid_until);
        let max_hold =
            max_hold.map(|duration| MaxHold { ends_at: since.plus(duration.as_duration()), duration });
        let valid_until =
            max_hold.map_or(first.valid_until, |max_hold| max_hold.ends_at.min(first.valid_until));
        let status = GuardStatus { state: GuardState::Held, valid_until, release_request: None };
        let timing = RenewalTiming {
            valid_until,
            renew_at,
            is_short,
            ends_at_limit: max_hold.is_some_and(|max_hold| max_hold.ends_at <= lasts_until),
        };
        let leases = inner.store.capabilities().push_notifications.then_some(1);
        let mut notifications = Notifications::default();
        let due = notifications.renewal_scheduled(since, timing.next(since), leases);
        let core = Arc::new(Self {
            inner,
            renew_at,
            max_hold,
            leases: Mutex::new(vec![first]),
            notifier: Mutex::new(GuardNotifier { status, watch: None, lost: None }),
            lost_reason: Mutex::default(),
            closed: AtomicBool::new(false),
            released: AtomicBool::new(false),
            renewing: AtomicBool::new(false),
            notifications: Mutex::new(notifications),
            timer: Mutex::default(),
        });
        core.set_timer(core.inner.background.timers(), due);
        core
    }

    pub(super) fn locks(&self) -> &dyn LockStore {
        self.inner.locks()
    }

    pub(super) fn len(&self) -> usize {
        self.leases().len()
    }

    pub(super) fn lease(&self, at: usize) -> (LockName, Lease) {
        let held = &self.leases()[at];
        (held.name.clone(), held.lease.clone())
    }

    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.leases().iter().map(|held| held.name.to_string()).collect();
        names.join(", ")
    }

    pub(super) fn valid_until(&self) -> BootInstant {
        self.notifier().status.valid_until
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Schedules the next renewal after the configured fraction of the remaining time. A guard has
    /// one timer.
    pub(super) fn schedule_renewal(self: &Arc<Self>, timers: &RenewalTimers, now: BootInstant) {
        // One statement each: each locks the leases until its end.
        let is_short = self.leases().iter().any(AcquiredLease::is_short);
        let ends_at_limit = self.lasts_until_max_hold();
        let (valid_until, renew_at) = (self.valid_until(), self.renew_at);
        let timing = RenewalTiming { valid_until, renew_at, is_short, ends_at_limit };
        let sends_notifications = self.inner.store.capabilities().push_notifications;
        let leases = sends_notifications.then(|| self.len());
        let due = self.notifications().renewal_scheduled(now, timing.next(now), leases);
        self.set_timer(timers, due);
    }

    /// Subscribes to notifications for every lease without a subscription. Returns the time until the
    /// renewal if nothing else is due now.
    pub(super) fn subscribe(self: &Arc<Self>) -> Option<Duration> {
        let store = &*self.inner.store;
        if !store.capabilities().push_notifications {
            return None;
        }
        let ids: Vec<_> = self.leases().iter().map(|held| held.lease.request.lease_id).collect();
        let core = Arc::downgrade(self);
        let on_notice = move || core.upgrade().into_iter().for_each(|core| core.notification_received());
        self.notifications().subscribe(store, &ids, &(Arc::new(on_notice) as OnNotice))
    }

    /// Renews the guard at once because another caller may have changed one of its leases.
    fn notification_received(self: &Arc<Self>) {
        let due = self.notifications().received(BootInstant::now());
        self.set_timer(self.inner.background.timers(), due);
    }

    /// Schedules the next renewal of the guard, or an immediate one if a notification arrived in the
    /// meantime.
    pub(super) fn schedule_next(self: &Arc<Self>, timers: &RenewalTimers) {
        self.schedule_renewal(timers, BootInstant::now());
        if self.notifications().pending {
            self.notification_received();
        }
    }

    /// Returns whether no renewal is needed because every lease lasts until the time limit of the
    /// caller.
    fn lasts_until_max_hold(&self) -> bool {
        let last = self.leases().iter().map(|held| held.valid_until).min();
        self.max_hold.zip(last).is_some_and(|(max_hold, last)| max_hold.ends_at <= last)
    }

    pub(super) fn set_timer(self: &Arc<Self>, timers: &RenewalTimers, due: BootInstant) {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(earlier) = timer.take() {
            timers.cancel(earlier);
        }
        if !self.is_closed() {
            let guard: Weak<Self> = Arc::downgrade(self);
            *timer = Some(timers.schedule(due, guard));
        }
    }

    /// Handles the timer of a guard; returns whether the guard is to be renewed now. Marks the
    /// guard as lost if its deadline has passed. Otherwise sets the timer to the deadline first, so
    /// that the guard is lost on time whatever the result of that renewal.
    pub(super) fn timer_fired(self: &Arc<Self>, timers: &RenewalTimers, now: BootInstant) -> bool {
        let valid_until = self.valid_until();
        if self.is_closed() {
            return false;
        }
        if now >= valid_until {
            self.lose_at_deadline();
            return false;
        }
        self.set_timer(timers, valid_until);
        !self.renewing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn renewal_ended(&self) {
        self.renewing.store(false, Ordering::Release);
    }

    pub(super) fn add(&self, lease: AcquiredLease) {
        let valid_until = lease.valid_until;
        let mut leases = self.leases();
        leases.push(lease);
        // While `leases` is locked: a renewal that ends now must not set a time that ignores this
        // lease.
        self.notifier().change(|status| status.valid_until = status.valid_until.min(valid_until));
    }

    pub(super) fn renewed(&self, at: usize, lease: Lease, sent: BootInstant) {
        let mut leases = self.leases();
        leases[at].valid_until = sent.plus(lease.expires_at.since(lease.renewed_at));
        leases[at].lease = lease;
        let valid_until = leases
            .iter()
            .map(|held| held.valid_until)
            .chain(self.max_hold.map(|max_hold| max_hold.ends_at))
            .min();
        let release_request = leases.iter().find_map(|held| held.lease.release_request.clone());
        let mut notifier = self.notifier();
        if notifier.status.state != GuardState::Lost {
            notifier.change(|status| {
                status.valid_until = valid_until.unwrap_or(status.valid_until);
                status.release_request = release_request;
            });
        }
    }

    pub(super) fn set_state(&self, state: GuardState) {
        let mut notifier = self.notifier();
        if notifier.status.state != state && notifier.status.state != GuardState::Lost {
            notifier.change(|status| status.state = state);
        }
    }

    /// Marks the guard as lost because the lease on this lock is lost. The other leases stay held
    /// until the guard is dropped or released, because its work may not have stopped yet, but they
    /// are not renewed any more. `ended` is the index of the lease that the store reported as
    /// ended.
    pub(super) fn lose(&self, lock: LockName, reason: String, ended: Option<usize>) {
        let mut loss = self.lost_reason.lock().unwrap_or_else(PoisonError::into_inner);
        if self.closed.swap(true, Ordering::AcqRel) {
            return; // Released in the meantime: not a loss.
        }
        let (lost_lock, lost_reason) = (lock.clone(), reason.clone());
        *loss = Some(Loss { lock, reason, ended });
        self.set_state(GuardState::Lost);
        drop(loss);
        // Logged after the mutex is unlocked, because the log subscriber may be slow.
        tracing::warn!(lock = %lost_lock, reason = lost_reason, "a lease was lost");
    }

    pub(super) fn lose_at_deadline(&self) {
        if is_planted!(IgnoresTheDeadline) {
            return;
        }
        let first = self.leases().iter().min_by_key(|held| held.valid_until).map(|held| held.name.clone());
        if let Some(lock) = first {
            let reason = match self.max_hold.filter(|max_hold| max_hold.ends_at <= BootInstant::now()) {
                Some(MaxHold { duration, .. }) => {
                    format!("it was held for {duration}, the maximum that its holder allowed")
                }
                None => "it could not be renewed in time".to_owned(),
            };
            self.lose(lock, reason, None);
        }
    }

    pub(super) fn lost_error(&self) -> Error {
        let loss = self.lost_reason.lock().unwrap_or_else(PoisonError::into_inner);
        match &*loss {
            Some(Loss { lock, reason, .. }) => Error::Lost { lock: lock.clone(), reason: reason.clone() },
            None => Error::Lost { lock: self.lease(0).0, reason: "it has been released".to_owned() },
        }
    }

    /// Releases in the background every lease of a lost guard that the store has not reported as
    /// ended. A renewal that did not succeed in time may have been executed by the store
    /// nevertheless.
    pub(super) fn release_remaining(self: &Arc<Self>, done: Option<oneshot::Sender<()>>) {
        let ended = match &*self.lost_reason.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(loss) => loss.ended,
            None => return,
        };
        if self.released.swap(true, Ordering::AcqRel) {
            return;
        }
        let remaining = (0..self.len()).rev().filter(|at| Some(*at) != ended).collect();
        self.release_in_background(remaining, None, done);
    }

    fn release_in_background(
        self: &Arc<Self>,
        leases: Vec<usize>,
        at_least: Option<Ttl>,
        done: Option<oneshot::Sender<()>>,
    ) {
        let core = self.clone();
        self.inner.background.spawn(async move {
            for at in leases {
                let (name, release, valid_until) = core.release_op(at, at_least);
                let until = valid_until.max(BootInstant::now().plus(BACKGROUND_RELEASE_TIMEOUT));
                if let Err(error) = in_doubt::release(core.locks(), &name, &release, until).await {
                    tracing::debug!(lock = %name, %error, "failed to release a lease in the background; it will expire");
                }
            }
            drop(done);
        });
    }

    /// Ends the renewals. Returns `false` if the guard had already been released or lost.
    pub(super) fn close(&self) -> bool {
        if self.closed.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(timer) = self.timer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.inner.background.timers().cancel(timer);
        }
        let ended = std::mem::take(&mut *self.notifications());
        drop(ended); // After unlocking the mutex: a notification may be in progress.
        true
    }

    /// Repeats the acquire with the same id: the lease gets its full TTL, and the store counts no
    /// renewal.
    pub(super) async fn confirm(&self, at: usize) -> Result<()> {
        let (name, lease) = self.lease(at);
        let (sent, until) = (BootInstant::now(), self.leases()[at].valid_until);
        if until.after(sent) > lease.request.ttl.as_duration().mul_f64(0.9) {
            return Ok(());
        }
        let acquire = Acquire { request: lease.request.clone(), queue: None, steal_after: None };
        match self.inner.acquire(&name, acquire).await? {
            Acquired::Granted(lease) => {
                self.renewed(at, lease, sent);
                Ok(())
            }
            Acquired::Conflict(conflict) | Acquired::Queued(Queued { conflict, .. }) => {
                let conflict = Box::new(conflict);
                Err(Error::Conflict { lock: name, conflict, waited: Duration::ZERO })
            }
        }
    }

    /// Releases all leases. If the caller drops the future, the rest is released in the background, and so is a
    /// lease whose release failed: the store may have it for longer than this process knows.
    pub(super) async fn release(self: &Arc<Self>, at_least: Option<Ttl>) -> Result<()> {
        if !self.close() {
            self.release_remaining(None);
            return Err(self.lost_error());
        }
        let mut unfinished = UnfinishedRelease { core: self, at_least, left: self.len(), failed: Vec::new() };
        let mut failed = Ok(());
        // In reverse order of acquisition; a failed release does not prevent the others.
        while let Some(at) = unfinished.left.checked_sub(1) {
            if let Err(error) = self.release_one(at, at_least).await {
                if !matches!(error, Error::Lost { .. }) {
                    unfinished.failed.push(at);
                }
                // A loss matters more than a lease that expires by itself.
                if !matches!(failed, Err(Error::Lost { .. })) {
                    failed = Err(error);
                }
            }
            unfinished.left = at;
        }
        failed
    }

    async fn release_one(&self, at: usize, at_least: Option<Ttl>) -> Result<()> {
        let (name, release, until) = self.release_op(at, at_least);
        match in_doubt::release(self.locks(), &name, &release, until).await? {
            Ok(_) => Ok(()),
            Err(_) => {
                let (id, token) = (release.lease_id, release.token);
                let reason = in_doubt::end_reason(self.locks(), &name, id, token).await;
                let reason = reason.unwrap_or_else(|| "it had ended before it was released".to_owned());
                Err(Error::Lost { lock: name, reason })
            }
        }
    }

    /// Returns the release of a lease, and the end of that lease: the guard itself may end before.
    fn release_op(&self, at: usize, at_least: Option<Ttl>) -> (LockName, Release, BootInstant) {
        let held = &self.leases()[at];
        let (lease_id, token) = (held.lease.request.lease_id, held.lease.token);
        (held.name.clone(), Release { lease_id, token, at_least }, held.valid_until)
    }

    pub(super) fn watch(&self) -> watch::Receiver<GuardStatus> {
        let mut notifier = self.notifier();
        let GuardNotifier { status, watch, .. } = &mut *notifier;
        watch.get_or_insert_with(|| watch::Sender::new(status.clone())).subscribe()
    }

    pub(super) fn lost(&self) -> CancellationToken {
        let mut notifier = self.notifier();
        let lost = notifier.lost.get_or_insert_default().clone();
        if notifier.status.state == GuardState::Lost {
            lost.cancel();
        }
        lost
    }

    pub(super) fn notifier(&self) -> MutexGuard<'_, GuardNotifier> {
        self.notifier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notifications(&self) -> MutexGuard<'_, Notifications> {
        self.notifications.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leases(&self) -> MutexGuard<'_, Vec<AcquiredLease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Release whose caller may drop its future. The first `left` leases and those of failed attempts are not known
/// to be released.
struct UnfinishedRelease<'a> {
    core: &'a Arc<Core>,
    at_least: Option<Ttl>,
    left: usize,
    failed: Vec<usize>,
}

impl Drop for UnfinishedRelease<'_> {
    fn drop(&mut self) {
        let failed = std::mem::take(&mut self.failed);
        let leases: Vec<usize> = (0..self.left).rev().chain(failed).collect();
        if !leases.is_empty() {
            self.core.release_in_background(leases, self.at_least, None);
        }
    }
}
