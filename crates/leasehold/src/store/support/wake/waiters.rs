//! Waiters of this process, by lease id.
//!
//! A lease is delivered only to the waiter of the same store and the same lock: lease ids are chosen
//! by callers, and a caller can wait for two locks under one id, or under an id that belongs to
//! another caller.

use std::sync::Arc;
#[cfg(any(feature = "postgres", feature = "redis"))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::registry::{Registration, Registry, Subscribers};
use crate::model::{Lease, LeaseId, LockName};
use crate::store::BootInstant;
use crate::store::support::mutex;
use crate::store::support::sync::{LazyLock, Mutex, MutexGuard, timeout};

/// Lease that a ticket has become, as the process that caused the grant sends it to the waiter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RemoteGrant {
    /// Granted lease.
    pub lease: Lease,
    /// Instant before the store granted the lease: the lease lasts at least for its duration from
    /// this instant.
    pub since: BootInstant,
}

/// Reason why a waiter wakes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Wakeup {
    /// The lease was granted: the caller that handed the lock over is in this process, or has sent
    /// the lease.
    Granted(RemoteGrant),
    /// Hint that the lock may have been handed over: query the store.
    Hint,
    /// Hints may have been lost, for this waiter and for others: read the lock, as after `Poll`.
    Missed,
    /// No hint arrived within the poll interval: query the store.
    Poll,
}

/// Average interval between two polls of the store by all waiters of this process together.
const POLL_SPACING: Duration = Duration::from_micros(500);
/// Maximum poll interval caused by the number of other waiters. Longer than the interval at which
/// tickets are refreshed: a waiter far back in a long queue only refreshes its ticket.
const MAX_POLL: Duration = Duration::from_secs(4);
/// Number of tickets ahead that add one poll interval on engines without wake-ups: there, waiters
/// detect a hand-over only by polling.
const AHEAD_PER_POLL: u32 = 8;

/// Waiters of this process, for hints that contain only a lease id. Several waiters may use one id.
static WAITING: LazyLock<Registry<LeaseId, WaiterSlot>> = LazyLock::new(Registry::default);

/// Waiters of one store in this process. Stores that were opened separately do not deliver leases to
/// each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiters(u64);

impl Default for Waiters {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Place to which the wake-ups of one waiter are delivered.
#[derive(Default)]
pub(crate) struct WaiterSlot {
    /// Store and lock that the waiter waits for. `None` for a relay, which only receives hints.
    waits_for: Option<(Waiters, LockName)>,
    notify: Notify,
    granted: Mutex<Option<RemoteGrant>>,
    /// Wake-ups that the waiter has not seen yet: a union of `NAMED` and `WITH_ALL`.
    woken: AtomicU8,
    /// Number of the last request that was sent, and an instant before it was sent.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    last_request: Mutex<Option<(u64, BootInstant)>>,
}

/// Wake-up of this waiter.
const NAMED: u8 = 1;
/// Wake-up of all waiters.
#[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
const WITH_ALL: u8 = 2;

impl WaiterSlot {
    fn waits_for_lock(&self, store: Waiters, lock: &LockName) -> bool {
        self.waits_for.as_ref().is_some_and(|(at, name)| *at == store && name == lock)
    }

    fn deliver(&self, granted: RemoteGrant) {
        *mutex::lock(&self.granted) = Some(granted);
        self.notify();
    }

    /// Wakes the waiter: its ticket may have been granted.
    pub(crate) fn notify(&self) {
        self.woken.fetch_or(NAMED, Ordering::Relaxed);
        self.notify.notify_one();
    }

    /// Wakes the waiter together with all others: it reads the lock within a time that grows with their number.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
    pub(crate) fn notify_with_all(&self) {
        self.woken.fetch_or(WITH_ALL, Ordering::Relaxed);
        self.notify.notify_one();
    }

    /// Whether the waiter was woken with all others, and not by itself, since the last call.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
    fn was_woken_with_all(&self) -> bool {
        self.woken.swap(0, Ordering::Relaxed) == WITH_ALL
    }

    #[cfg(not(any(feature = "postgres", feature = "redis", feature = "http")))]
    fn was_woken_with_all(&self) -> bool {
        false
    }
}

/// Whether other processes wake the waiter, so that polling only compensates for lost wake-ups.
#[derive(Debug)]
enum Notifications {
    Always,
    Never,
    /// While this is set.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    While(Arc<AtomicBool>),
}

impl Notifications {
    fn arrive(&self) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            #[cfg(any(feature = "postgres", feature = "redis"))]
            Self::While(arrive) => arrive.load(Ordering::Relaxed),
        }
    }
}

/// Wake-ups of one waiter. Dropping the subscription ends them.
pub struct WaiterSubscription {
    registration: Registration<LeaseId, WaiterSlot>,
    poll: Duration,
    notifications: Notifications,
    /// Number of tickets before this waiter's, as last reported.
    ahead: u32,
}

impl WaiterSubscription {
    /// Subscribes a waiter that is woken only through this registry: a server may run in this same
    /// process, and have a waiter with the same id.
    #[cfg(feature = "http")]
    pub(crate) fn detached(
        registry: &Registry<LeaseId, WaiterSlot>,
        waiter: LeaseId,
        poll: Duration,
    ) -> Self {
        Self::new(registry.register(waiter, WaiterSlot::default()), poll)
    }

    const fn new(registration: Registration<LeaseId, WaiterSlot>, poll: Duration) -> Self {
        Self { registration, poll, notifications: Notifications::Always, ahead: 0 }
    }

    /// Returns the subscription of a waiter that other processes wake only while `arrive` is set.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn notified_while(mut self, arrive: &Arc<AtomicBool>) -> Self {
        self.notifications = Notifications::While(arrive.clone());
        self
    }

    /// Sets the number of tickets before this waiter's: the further back the waiter is, the less
    /// often it polls.
    pub fn note_ahead(&mut self, ahead: u32) {
        self.ahead = ahead;
    }

    /// Whether a later request waits for the same lock under the same lease id: the caller has sent a
    /// new request while its first one is not known to have ended. The later request keeps the
    /// ticket.
    pub(crate) fn is_superseded(&self) -> bool {
        let Registration { registry, key: waiter, subscriber: slot } = &self.registration;
        let Some((store, lock)) = &slot.waits_for else { return false };
        let waiting = registry.lock();
        let last = waiting
            .get(waiter)
            .and_then(|slots| slots.iter().rfind(|slot| slot.waits_for_lock(*store, lock)));
        last.is_some_and(|last| !Arc::ptr_eq(last, slot))
    }

    /// Forgets a lease that was delivered before the store answered that the request is queued: the
    /// lease may have ended before that answer. The waiter is woken, and queries the store.
    pub(crate) fn forget_grant(&mut self) {
        mutex::lock(&self.registration.subscriber.granted).take();
    }

    /// Waits for a wake-up, at most for `timeout` and for the poll interval. The first waiter in the
    /// queue polls at the engine's interval, later ones less often, and all of them less often if
    /// very many waiters are in this process.
    pub async fn next(&mut self, timeout: Duration) -> Wakeup {
        let behind = poll_behind(self.poll, self.ahead, self.notifications.arrive());
        let Registration { registry, subscriber: slot, .. } = &self.registration;
        let (waiters, started) = (registry.lock().len(), BootInstant::now());
        let wait = poll_among(behind, waiters).min(timeout);
        let notified = self::timeout(wait, slot.notify.notified()).await.is_ok();
        let mut is_one_of_all = notified && slot.was_woken_with_all();
        if is_one_of_all {
            // Not all of them read the store at the same time, also if all are woken again meanwhile.
            let left = timeout.saturating_sub(BootInstant::now().after(started));
            let until = BootInstant::now().plus(poll_spacing(waiters).mul_f64(fastrand::f64()).min(left));
            while is_one_of_all
                && self::timeout(until.after(BootInstant::now()), slot.notify.notified()).await.is_ok()
            {
                is_one_of_all = slot.was_woken_with_all();
            }
        }
        let granted = mutex::lock(&slot.granted).take();
        match granted {
            Some(granted) => Wakeup::Granted(granted),
            None if is_one_of_all => Wakeup::Missed,
            None if notified => Wakeup::Hint,
            None => Wakeup::Poll,
        }
    }
}

impl std::fmt::Debug for WaiterSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaiterSubscription")
            .field("waiter", &self.registration.key)
            .field("poll", &self.poll)
            .finish_non_exhaustive()
    }
}

/// Returns the poll interval of a waiter with `ahead` tickets before its own. With wake-ups the
/// interval is proportional to the place in the queue, so that all waiters of one lock together poll
/// `ln(n)` times per interval.
fn poll_behind(poll: Duration, ahead: u32, push_notifications: bool) -> Duration {
    let polls = if push_notifications { ahead } else { ahead / AHEAD_PER_POLL };
    poll.saturating_mul(polls.saturating_add(1)).min(MAX_POLL.max(poll))
}

/// Returns the poll interval of one of `waiters` waiters. Their common poll rate is bounded, so that
/// the store has capacity for other callers. A waiter still refreshes its ticket in time: the
/// `timeout` of [`WaiterSubscription::next`] ends the wait.
fn poll_among(poll: Duration, waiters: usize) -> Duration {
    poll.max(poll_spacing(waiters))
}

/// Returns the time in which `waiters` waiters may query the store, each once.
fn poll_spacing(waiters: usize) -> Duration {
    POLL_SPACING.saturating_mul(u32::try_from(waiters).unwrap_or(u32::MAX)).min(MAX_POLL)
}

impl Waiters {
    /// Subscribes one waiter for `lock` to wake-ups; without a lock, subscribes a relay, which
    /// forwards hints.
    pub(crate) fn subscribe(
        self,
        lock: Option<&LockName>,
        waiter: LeaseId,
        poll: Duration,
    ) -> WaiterSubscription {
        let waits_for = lock.map(|lock| (self, lock.clone()));
        let slot = WaiterSlot { waits_for, ..WaiterSlot::default() };
        WaiterSubscription::new(WAITING.register(waiter, slot), poll)
    }

    /// Like [`subscribe`](Self::subscribe), for engines that send no wake-ups: the waiter is woken by
    /// this process and by polling.
    pub(crate) fn polling(
        self,
        lock: Option<&LockName>,
        waiter: LeaseId,
        poll: Duration,
    ) -> WaiterSubscription {
        let mut subscription = self.subscribe(lock, waiter, poll);
        subscription.notifications = Notifications::Never;
        subscription
    }

    /// Delivers leases of `lock` to the waiters of this store in this process; returns the other
    /// leases. Waiters with the same ids in other stores of this process are woken and query their
    /// own store.
    pub(crate) fn wake_local(
        self,
        lock: &LockName,
        mut granted: Vec<Lease>,
        since: BootInstant,
    ) -> Vec<Lease> {
        granted.retain(|lease| {
            let waiting = waiting();
            let Some(slots) = waiting.get(&lease.request.lease_id) else { return true };
            if let Some(slot) = slots.iter().rfind(|slot| slot.waits_for_lock(self, lock)) {
                slot.deliver(RemoteGrant { lease: lease.clone(), since });
            }
            for slot in slots.iter().filter(|slot| !slot.waits_for_lock(self, lock)) {
                slot.notify();
            }
            !slots.iter().any(|slot| slot.waits_for_lock(self, lock))
        });
        granted
    }

    /// Wakes all waiters of this store in this process, and all relays: notifications of their grants may have been
    /// lost, or will not arrive from now on.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn wake_all(self) {
        for slot in waiting().values().flatten() {
            if slot.waits_for.as_ref().is_none_or(|(at, _)| *at == self) {
                slot.notify_with_all();
            }
        }
    }

    /// Records that this waiter is about to send a request for `lock`, or has sent it and was queued,
    /// together with the number that identifies the request. Returns `false` if the waiter is not in
    /// this process.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn register_request(
        self,
        lock: &LockName,
        waiter: &LeaseId,
        number: u64,
        since: BootInstant,
    ) -> bool {
        let Some(slot) = self.slot(lock, waiter) else { return false };
        let mut last_request = mutex::lock(&slot.last_request);
        *last_request = Some((number, since));
        // A lease that was delivered before is older than the response to this request.
        *mutex::lock(&slot.granted) = None;
        true
    }

    /// Delivers a lease of `lock` that another process granted, if the lease is newer than the
    /// waiter's last request, which its number identifies: then the lease was granted after that
    /// request was sent, and lasts at least for its duration from there. Any other lease is a hint to
    /// query the store.
    #[cfg(feature = "postgres")]
    pub(crate) fn deliver_remote_grant(
        self,
        lock: &LockName,
        lease: Lease,
        is_newer_than: impl FnOnce(u64) -> bool,
    ) {
        let Some(slot) = self.slot(lock, &lease.request.lease_id) else {
            return wake_by_id(&lease.request.lease_id);
        };
        // Locked until the delivery: a request that is sent meanwhile must discard this lease.
        let last_request = mutex::lock(&slot.last_request);
        match *last_request {
            Some((number, since)) if is_newer_than(number) => slot.deliver(RemoteGrant { lease, since }),
            _ => slot.notify(),
        }
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn is_local(self, lock: &LockName, waiter: &LeaseId) -> bool {
        self.slot(lock, waiter).is_some()
    }

    /// Returns up to `most` waiters for `lock` in this process.
    #[cfg(feature = "postgres")]
    pub(crate) fn local_waiters(self, lock: &LockName, most: usize) -> Vec<LeaseId> {
        let waiting = waiting();
        // The map contains the waiters of all locks: only a bounded part of it is read.
        let here = waiting
            .iter()
            .take(most * 4)
            .filter(|(_, slots)| slots.iter().any(|slot| slot.waits_for_lock(self, lock)));
        here.map(|(waiter, _)| *waiter).take(most).collect()
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    fn slot(self, lock: &LockName, waiter: &LeaseId) -> Option<Arc<WaiterSlot>> {
        waiting().get(waiter)?.iter().rfind(|slot| slot.waits_for_lock(self, lock)).cloned()
    }
}

/// Delivers a lease to the waiter whose last request has this number, which other callers cannot
/// guess. The other waiters of the id are woken and query the store.
#[cfg(feature = "redis")]
pub(crate) fn deliver_by_number(lease: &Lease, number: u64) {
    let waiting = waiting();
    for slot in waiting.get(&lease.request.lease_id).into_iter().flatten() {
        // Locked until the delivery: a request that is sent meanwhile must discard this lease.
        let last_request = mutex::lock(&slot.last_request);
        match *last_request {
            Some((last, since)) if last == number => {
                slot.deliver(RemoteGrant { lease: lease.clone(), since });
            }
            _ => slot.notify(),
        }
    }
}

/// Wakes every waiter of this lease id: each queries the store.
#[cfg(any(feature = "postgres", feature = "redis", all(target_os = "linux", feature = "sqlite")))]
pub(crate) fn wake_by_id(waiter: &LeaseId) {
    for slot in waiting().get(waiter).into_iter().flatten() {
        slot.notify();
    }
}

fn waiting() -> MutexGuard<'static, Subscribers<LeaseId, WaiterSlot>> {
    WAITING.lock()
}

#[cfg(test)]
mod tests;
