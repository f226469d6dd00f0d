//! Waiters of this process, by lease id.
//!
//! A lease is delivered only to the waiter of the same store and the same lock: lease ids are chosen
//! by callers, and a caller can wait for two locks under one id, or under an id that belongs to
//! another caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
pub enum Wakeup {
    /// The lease was granted: the caller that handed the lock over is in this process, or has sent
    /// the lease.
    Granted(RemoteGrant),
    /// Hint that the lock may have been handed over: query the store.
    Hint,
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
    /// Whether the waiter was woken together with all others.
    is_one_of_all: AtomicBool,
    /// Number of the last request that was sent, and an instant before it was sent.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    last_request: Mutex<Option<(u64, BootInstant)>>,
}

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
        self.notify.notify_one();
    }

    /// Wakes the waiter together with all others: it queries the store within a time that grows with their number.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
    pub(crate) fn notify_with_all(&self) {
        self.is_one_of_all.store(true, Ordering::Relaxed);
        self.notify();
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
        if notified && slot.is_one_of_all.swap(false, Ordering::Relaxed) {
            // Not all of them query the store at the same time.
            let left = timeout.saturating_sub(BootInstant::now().after(started));
            let delay = poll_spacing(waiters).mul_f64(fastrand::f64()).min(left);
            let _ = self::timeout(delay, slot.notify.notified()).await;
        }
        let granted = mutex::lock(&slot.granted).take();
        match granted {
            Some(granted) => Wakeup::Granted(granted),
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
                slot.notify.notify_one();
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
            _ => slot.notify.notify_one(),
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
            _ => slot.notify.notify_one(),
        }
    }
}

/// Wakes every waiter of this lease id: each queries the store.
#[cfg(any(feature = "postgres", feature = "redis", all(target_os = "linux", feature = "sqlite")))]
pub(crate) fn wake_by_id(waiter: &LeaseId) {
    for slot in waiting().get(waiter).into_iter().flatten() {
        slot.notify.notify_one();
    }
}

fn waiting() -> MutexGuard<'static, Subscribers<LeaseId, WaiterSlot>> {
    WAITING.lock()
}

#[cfg(test)]
mod registry_tests {
    use super::*;
    use crate::store::clock;

    fn lock(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    #[tokio::test]
    async fn a_request_with_the_same_id_stays_registered_when_the_first_one_ends() {
        let (id, waiters, lock) = (clock::new_lease_id(), Waiters::default(), lock("lock"));
        let first = waiters.polling(Some(&lock), id, Duration::from_secs(5));
        let second = waiters.polling(Some(&lock), id, Duration::from_secs(5));
        assert!(first.is_superseded() && !second.is_superseded());
        drop(first);
        assert!(!second.is_superseded());
        drop(second);
        assert!(!waiting().contains_key(&id));
    }

    #[tokio::test]
    async fn a_request_for_another_lock_or_store_or_of_a_relay_supersedes_nothing() {
        let (id, waiters, a) = (clock::new_lease_id(), Waiters::default(), lock("a"));
        let first = waiters.polling(Some(&a), id, Duration::from_secs(5));
        let others = [
            waiters.polling(Some(&lock("b")), id, Duration::from_secs(5)),
            Waiters::default().polling(Some(&a), id, Duration::from_secs(5)),
            waiters.polling(None, id, Duration::from_secs(5)),
        ];
        assert!(!first.is_superseded());
        drop(first);
        assert_eq!(waiting().get(&id).map_or(0, Vec::len), 3);
        drop(others);
        assert!(!waiting().contains_key(&id));
    }

    #[test]
    fn the_further_back_a_waiter_is_the_less_often_it_polls() {
        let poll = Duration::from_millis(250);
        assert_eq!(poll_behind(poll, 0, true), poll);
        assert_eq!(poll_behind(poll, 3, true), Duration::from_secs(1));
        assert_eq!(poll_behind(poll, 999, true), MAX_POLL);
        assert_eq!(poll_behind(poll, 3, false), poll);
        assert_eq!(poll_behind(poll, 24, false), Duration::from_secs(1));
        assert_eq!(poll_behind(Duration::from_secs(30), 999, true), Duration::from_secs(30));
        // Polls per second of a whole queue of 1,000 waiters.
        let rate: f64 = (0..1_000).map(|ahead| 1.0 / poll_behind(poll, ahead, true).as_secs_f64()).sum();
        assert!(rate < 300.0, "{rate}");
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[tokio::test(start_paused = true)]
    async fn a_waiter_far_back_polls_soon_while_no_notifications_arrive() {
        let (waiters, arrive, poll) =
            (Waiters::default(), Arc::<AtomicBool>::default(), Duration::from_millis(250));
        let waiter = waiters.subscribe(Some(&lock("lock")), clock::new_lease_id(), poll);
        let mut waiter = waiter.notified_while(&arrive);
        waiter.note_ahead(15);
        let second = Duration::from_secs(1);
        assert!(matches!(tokio::time::timeout(second, waiter.next(Duration::MAX)).await, Ok(Wakeup::Poll)));
        arrive.store(true, Ordering::Relaxed);
        assert!(tokio::time::timeout(3 * second, waiter.next(Duration::MAX)).await.is_err());
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[tokio::test(start_paused = true)]
    async fn all_waiters_of_a_store_and_all_relays_are_woken_one_after_the_other() {
        let (waiters, other_store) = (Waiters::default(), Waiters::default());
        let subscribe = |store: Waiters| {
            let mut waiter =
                store.subscribe(Some(&lock("lock")), clock::new_lease_id(), Duration::from_secs(1));
            waiter.note_ahead(3);
            waiter
        };
        let all: Vec<_> = (0..1_000).map(|_| subscribe(waiters)).collect();
        let relay = waiters.subscribe(None, clock::new_lease_id(), Duration::from_secs(1));
        let mut elsewhere = subscribe(other_store);
        waiters.wake_all();
        let woken = all.into_iter().chain([relay]).map(|mut waiter| async move {
            let mut next = std::pin::pin!(waiter.next(Duration::MAX));
            if tokio::time::timeout(Duration::from_millis(250), &mut next).await.is_ok() {
                return 1;
            }
            let late = tokio::time::timeout(Duration::from_secs(1), next).await;
            assert!(matches!(late, Ok(Wakeup::Hint)), "{late:?}");
            0
        });
        let early = futures_util::future::join_all(woken).await.iter().sum::<u32>();
        assert!((300..700).contains(&early), "{early}");
        assert!(matches!(elsewhere.next(Duration::from_millis(1)).await, Wakeup::Poll));
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_is_woken_with_all_others_waits_no_longer_than_it_may() {
        let waiters = Waiters::default();
        let subscribe =
            || waiters.subscribe(Some(&lock("lock")), clock::new_lease_id(), Duration::from_secs(1));
        let mut all: Vec<_> = (0..1_000).map(|_| subscribe()).collect();
        waiters.wake_all();
        let (started, limit) = (tokio::time::Instant::now(), Duration::from_millis(20));
        for (number, waiter) in (1..).zip(all.iter_mut().take(100)) {
            assert!(matches!(waiter.next(limit).await, Wakeup::Hint));
            // The paused clock has a resolution of a millisecond.
            assert!(started.elapsed() <= (limit + Duration::from_millis(1)) * number, "waiter {number}");
        }
    }

    #[test]
    fn the_more_waiters_the_less_often_each_polls() {
        let poll = Duration::from_millis(100);
        assert_eq!(poll_among(poll, 1), poll);
        assert_eq!(poll_among(poll, 200), poll);
        assert_eq!(poll_among(poll, 1_000), Duration::from_millis(500));
        assert_eq!(poll_among(poll, 100_000), MAX_POLL);
        assert_eq!(poll_among(Duration::from_secs(30), 1), Duration::from_secs(30));
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::model::{
        Acquire, Holder, LockName, LockOp, LockRecord, LockRequest, Metadata, Mode, Outcome, Priority, Slots,
        Timestamp, Ttl,
    };
    use crate::store::clock;

    fn lease() -> Lease {
        let request = LockRequest {
            lease_id: clock::new_lease_id(),
            holder: Holder::new("ada").unwrap(),
            mode: Mode::default(),
            slots: Slots::default(),
            priority: Priority::default(),
            ttl: Ttl::from_secs(10),
            metadata: Metadata::default(),
            process: None,
        };
        let op = LockOp::Acquire(Acquire { request: Arc::new(request), queue: None, steal_after: None });
        let mut record = LockRecord::new(LockName::new("lock").unwrap());
        match record.apply(&op, Timestamp::from_micros(1_000_000)).outcome {
            Outcome::Granted(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_lease_goes_only_to_the_waiter_of_its_store_and_lock() {
        let (lease, waiters, a) = (lease(), Waiters::default(), LockName::new("a").unwrap());
        let (id, poll, since) = (lease.request.lease_id, Duration::from_secs(5), BootInstant::now());
        let mut waiter = waiters.polling(Some(&a), id, poll);
        let mut other_lock = waiters.polling(Some(&LockName::new("b").unwrap()), id, poll);
        let mut other_store = Waiters::default().polling(Some(&a), id, poll);
        let mut relay = waiters.polling(None, id, poll);
        assert!(waiters.wake_local(&a, vec![lease.clone()], since).is_empty());
        assert!(matches!(waiter.next(poll).await, Wakeup::Granted(_)));
        for other in [&mut other_lock, &mut other_store, &mut relay] {
            assert!(matches!(other.next(poll).await, Wakeup::Hint));
        }
        drop(waiter);
        assert_eq!(waiters.wake_local(&a, vec![lease.clone()], since), [lease], "its waiter is elsewhere");
    }

    #[tokio::test]
    async fn a_lease_that_answers_the_last_request_counts_from_before_it() {
        let (lease, waiters, lock) = (lease(), Waiters::default(), LockName::new("lock").unwrap());
        let mut subscription = waiters.polling(Some(&lock), lease.request.lease_id, Duration::from_secs(5));
        let since = BootInstant::now();
        assert!(waiters.register_request(&lock, &lease.request.lease_id, 7, since));
        deliver_by_number(&lease, 7);
        match subscription.next(Duration::MAX).await {
            Wakeup::Granted(grant) => assert_eq!((grant.lease, grant.since), (lease, since)),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_lease_that_answers_another_request_only_wakes() {
        let (lease, waiters, lock) = (lease(), Waiters::default(), LockName::new("lock").unwrap());
        let mut subscription = waiters.polling(Some(&lock), lease.request.lease_id, Duration::from_secs(5));
        deliver_by_number(&lease, 7);
        assert!(matches!(subscription.next(Duration::MAX).await, Wakeup::Hint));
        waiters.register_request(&lock, &lease.request.lease_id, 7, BootInstant::now());
        waiters.register_request(&lock, &lease.request.lease_id, 8, BootInstant::now());
        deliver_by_number(&lease, 7);
        assert!(matches!(subscription.next(Duration::MAX).await, Wakeup::Hint));
    }

    #[tokio::test]
    async fn a_new_request_discards_the_lease_that_was_delivered() {
        let (lease, waiters, lock) = (lease(), Waiters::default(), LockName::new("lock").unwrap());
        let mut subscription = waiters.polling(Some(&lock), lease.request.lease_id, Duration::from_secs(5));
        waiters.register_request(&lock, &lease.request.lease_id, 7, BootInstant::now());
        deliver_by_number(&lease, 7);
        waiters.register_request(&lock, &lease.request.lease_id, 8, BootInstant::now());
        assert!(matches!(subscription.next(Duration::MAX).await, Wakeup::Hint));
        assert!(!waiters.register_request(&lock, &clock::new_lease_id(), 9, BootInstant::now()));
    }
}
