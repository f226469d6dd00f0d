//! Waiters of this process, by lease id.
//!
//! A lease is delivered only to the waiter of the same store and the same lock: lease ids are chosen
//! by callers, and a caller can wait for two locks under one id, or under an id that belongs to
//! another caller.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::model::{Lease, LeaseId, LockName};
use crate::store::BootInstant;

/// Lease that a ticket has become, as the process that caused the grant sends it to the waiter.
#[derive(Debug, Clone)]
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
    Served(RemoteGrant),
    /// Hint that the lock may have been handed over: query the store.
    Rung,
    /// No hint arrived within the poll interval: query the store.
    Poll,
}

/// Processes from which a waiter receives wake-ups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only this process.
    Process,
    /// Every process of this machine.
    Machine,
}

/// Average interval between two polls of the store by all waiters of this process together.
const EACH: Duration = Duration::from_micros(500);
/// Maximum poll interval caused by the number of other waiters. Longer than the interval at which
/// tickets are refreshed: a waiter far back in a long queue only refreshes its ticket.
const SLOWEST: Duration = Duration::from_secs(4);
/// Number of tickets ahead that add one poll interval on engines without wake-ups: there, waiters
/// detect a hand-over only by polling.
const AHEAD_PER_POLL: u32 = 8;

/// Waiters of this process, for hints that contain only a lease id. Several waiters may use one id.
static WAITING: LazyLock<Mutex<HashMap<LeaseId, Vec<Arc<Seat>>>>> = LazyLock::new(Mutex::default);

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

#[derive(Default)]
struct Seat {
    /// Store and lock that the waiter waits for. `None` for a relay, which only receives hints.
    place: Option<(Waiters, LockName)>,
    bell: Notify,
    handed_over: Mutex<Option<RemoteGrant>>,
    /// Number of the last request that was sent, and an instant before it was sent.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    asked: Mutex<Option<(u64, BootInstant)>>,
}

impl Seat {
    fn is_at(&self, store: Waiters, lock: &LockName) -> bool {
        self.place.as_ref().is_some_and(|(at, name)| *at == store && name == lock)
    }

    fn deliver(&self, handed_over: RemoteGrant) {
        *self.handed_over.lock().unwrap_or_else(PoisonError::into_inner) = Some(handed_over);
        self.bell.notify_one();
    }
}

/// Wake-ups of one waiter. Dropping the subscription ends them.
pub struct WaiterSubscription {
    waiter: LeaseId,
    seat: Arc<Seat>,
    poll: Duration,
    /// Whether the engine sends wake-ups, so that polling only compensates for lost ones.
    wakes: bool,
    /// Number of tickets before this waiter's, as last reported.
    ahead: u32,
    /// Resource of a separate subscription, dropped with it.
    #[cfg(feature = "http")]
    _kept: Option<Box<dyn std::any::Any + Send + Sync>>,
}

/// Wakes one waiter that is not in the map of this process.
#[cfg(feature = "http")]
pub(crate) struct Bell(Arc<Seat>);

#[cfg(feature = "http")]
impl Bell {
    /// Wakes the waiter: its ticket may have been granted.
    pub(crate) fn ring(&self) {
        self.0.bell.notify_one();
    }
}

impl WaiterSubscription {
    fn new(place: Option<(Waiters, LockName)>, waiter: LeaseId, reach: Reach, poll: Duration) -> Self {
        #[cfg(target_os = "linux")]
        if reach == Reach::Machine {
            super::datagram::listen();
        }
        let _ = reach;
        let seat = Arc::new(Seat { place, ..Seat::default() });
        waiting().entry(waiter).or_default().push(seat.clone());
        Self {
            waiter,
            seat,
            poll,
            wakes: true,
            ahead: 0,
            #[cfg(feature = "http")]
            _kept: None,
        }
    }

    /// Returns a subscription that is woken only by the returned [`Bell`]: a server may run in this
    /// same process, and have a waiter with the same id.
    #[cfg(feature = "http")]
    pub(crate) fn apart(
        waiter: LeaseId,
        poll: Duration,
        kept: impl std::any::Any + Send + Sync,
    ) -> (Self, Bell) {
        let seat = Arc::<Seat>::default();
        let bell = Bell(seat.clone());
        (Self { waiter, seat, poll, wakes: true, ahead: 0, _kept: Some(Box::new(kept)) }, bell)
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
        let Some((store, lock)) = &self.seat.place else { return false };
        let waiting = waiting();
        let last =
            waiting.get(&self.waiter).and_then(|seats| seats.iter().rfind(|seat| seat.is_at(*store, lock)));
        last.is_some_and(|last| !Arc::ptr_eq(last, &self.seat))
    }

    /// Waits for a wake-up, at most for `patience` and for the poll interval. The first waiter in the
    /// queue polls at the engine's interval, later ones less often, and all of them less often if
    /// very many waiters are in this process.
    pub async fn next(&mut self, patience: Duration) -> Wakeup {
        let behind = poll_behind(self.poll, self.ahead, self.wakes);
        let wait = poll_among(behind, waiting().len()).min(patience);
        let rung = tokio::time::timeout(wait, self.seat.bell.notified()).await.is_ok();
        let handed_over = self.seat.handed_over.lock().unwrap_or_else(PoisonError::into_inner).take();
        match handed_over {
            Some(handed_over) => Wakeup::Served(handed_over),
            None if rung => Wakeup::Rung,
            None => Wakeup::Poll,
        }
    }
}

impl std::fmt::Debug for WaiterSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaiterSubscription")
            .field("waiter", &self.waiter)
            .field("poll", &self.poll)
            .finish_non_exhaustive()
    }
}

impl Drop for WaiterSubscription {
    fn drop(&mut self) {
        let mut waiting = waiting();
        if let Some(seats) = waiting.get_mut(&self.waiter) {
            seats.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
            if seats.is_empty() {
                waiting.remove(&self.waiter);
            }
        }
    }
}

/// Returns the poll interval of a waiter with `ahead` tickets before its own. With wake-ups the
/// interval is proportional to the place in the queue, so that all waiters of one lock together poll
/// `ln(n)` times per interval.
fn poll_behind(poll: Duration, ahead: u32, wakes: bool) -> Duration {
    let polls = if wakes { ahead } else { ahead / AHEAD_PER_POLL };
    poll.saturating_mul(polls.saturating_add(1)).min(SLOWEST.max(poll))
}

/// Returns the poll interval of one of `waiters` waiters. Their common poll rate is bounded, so that
/// the store has capacity for other callers. A waiter still refreshes its ticket in time: the
/// `patience` of [`WaiterSubscription::next`] ends the wait.
fn poll_among(poll: Duration, waiters: usize) -> Duration {
    let waiters = u32::try_from(waiters).unwrap_or(u32::MAX);
    poll.max(EACH.saturating_mul(waiters).min(SLOWEST))
}

impl Waiters {
    /// Subscribes one waiter for `lock` to wake-ups; without a lock, subscribes a relay, which
    /// forwards hints.
    pub(crate) fn changes(
        self,
        lock: Option<&LockName>,
        waiter: LeaseId,
        reach: Reach,
        poll: Duration,
    ) -> WaiterSubscription {
        WaiterSubscription::new(lock.map(|lock| (self, lock.clone())), waiter, reach, poll)
    }

    /// Like [`changes`](Self::changes), for engines that send no wake-ups: the waiter is woken by
    /// this process and by polling.
    pub(crate) fn polling(
        self,
        lock: Option<&LockName>,
        waiter: LeaseId,
        poll: Duration,
    ) -> WaiterSubscription {
        let mut changes = self.changes(lock, waiter, Reach::Process, poll);
        changes.wakes = false;
        changes
    }

    /// Wakes the waiters of these leases of `lock`, in this process and in the processes of `reach`.
    pub(crate) fn wake(self, lock: &LockName, handed_over: Vec<Lease>, since: BootInstant, reach: Reach) {
        for lease in self.wake_here(lock, handed_over, since) {
            #[cfg(target_os = "linux")]
            if reach == Reach::Machine {
                super::datagram::send(&lease);
            }
            let _ = (&lease, reach);
        }
    }

    /// Delivers leases of `lock` to the waiters of this store in this process; returns the other
    /// leases. Waiters with the same ids in other stores of this process are woken and query their
    /// own store.
    pub(crate) fn wake_here(
        self,
        lock: &LockName,
        mut handed_over: Vec<Lease>,
        since: BootInstant,
    ) -> Vec<Lease> {
        handed_over.retain(|lease| {
            let waiting = waiting();
            let Some(seats) = waiting.get(&lease.ask.lease_id) else {
                return true;
            };
            if let Some(seat) = seats.iter().rfind(|seat| seat.is_at(self, lock)) {
                seat.deliver(RemoteGrant { lease: lease.clone(), since });
            }
            for seat in seats.iter().filter(|seat| !seat.is_at(self, lock)) {
                seat.bell.notify_one();
            }
            !seats.iter().any(|seat| seat.is_at(self, lock))
        });
        handed_over
    }

    /// Records that this waiter is about to send a request for `lock`, or has sent it and was queued,
    /// together with the number that identifies the request. Returns `false` if the waiter is not in
    /// this process.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn asks(self, lock: &LockName, waiter: &LeaseId, number: u64, since: BootInstant) -> bool {
        let Some(seat) = self.seat(lock, waiter) else {
            return false;
        };
        let mut asked = seat.asked.lock().unwrap_or_else(PoisonError::into_inner);
        *asked = Some((number, since));
        // A lease that was delivered before is older than the response to this request.
        *seat.handed_over.lock().unwrap_or_else(PoisonError::into_inner) = None;
        true
    }

    /// Delivers a lease of `lock` that another process granted, if the lease is newer than the
    /// waiter's last request, which its number identifies: then the lease was granted after that
    /// request was sent, and lasts at least for its duration from there. Any other lease is a hint to
    /// query the store.
    #[cfg(feature = "postgres")]
    pub(crate) fn served_from_afar(
        self,
        lock: &LockName,
        lease: Lease,
        is_newer_than: impl FnOnce(u64) -> bool,
    ) {
        let Some(seat) = self.seat(lock, &lease.ask.lease_id) else {
            return ring(&lease.ask.lease_id);
        };
        // Locked until the delivery: a request that is sent meanwhile must discard this lease.
        let asked = seat.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match *asked {
            Some((number, since)) if is_newer_than(number) => seat.deliver(RemoteGrant { lease, since }),
            _ => seat.bell.notify_one(),
        }
    }

    /// Whether this waiter is in this process.
    #[cfg(feature = "postgres")]
    pub(crate) fn waits_here(self, lock: &LockName, waiter: &LeaseId) -> bool {
        self.seat(lock, waiter).is_some()
    }

    /// Returns up to `most` waiters for `lock` in this process.
    #[cfg(feature = "postgres")]
    pub(crate) fn some_here(self, lock: &LockName, most: usize) -> Vec<LeaseId> {
        let waiting = waiting();
        // The map contains the waiters of all locks: only a bounded part of it is read.
        let here = waiting
            .iter()
            .take(most * 4)
            .filter(|(_, seats)| seats.iter().any(|seat| seat.is_at(self, lock)));
        here.map(|(waiter, _)| *waiter).take(most).collect()
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    fn seat(self, lock: &LockName, waiter: &LeaseId) -> Option<Arc<Seat>> {
        waiting().get(waiter)?.iter().rfind(|seat| seat.is_at(self, lock)).cloned()
    }
}

/// Delivers a lease to the waiter whose last request has this number, which other callers cannot
/// guess. The other waiters of the id are woken and query the store.
#[cfg(feature = "redis")]
pub(crate) fn served_by_number(lease: &Lease, number: u64) {
    let waiting = waiting();
    for seat in waiting.get(&lease.ask.lease_id).into_iter().flatten() {
        // Locked until the delivery: a request that is sent meanwhile must discard this lease.
        let asked = seat.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match *asked {
            Some((last, since)) if last == number => {
                seat.deliver(RemoteGrant { lease: lease.clone(), since });
            }
            _ => seat.bell.notify_one(),
        }
    }
}

/// Wakes every waiter of this lease id: each queries the store.
#[cfg(any(target_os = "linux", feature = "postgres", feature = "redis"))]
pub(crate) fn ring(waiter: &LeaseId) {
    for seat in waiting().get(waiter).into_iter().flatten() {
        seat.bell.notify_one();
    }
}

fn waiting() -> std::sync::MutexGuard<'static, HashMap<LeaseId, Vec<Arc<Seat>>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod seats {
    use super::*;
    use crate::store::clock;

    fn lock(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    #[tokio::test]
    async fn a_request_with_the_same_id_keeps_its_place_when_the_first_one_ends() {
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
    async fn a_request_for_another_lock_or_store_or_of_a_relay_takes_no_place() {
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
        assert_eq!(poll_behind(poll, 999, true), SLOWEST);
        assert_eq!(poll_behind(poll, 3, false), poll);
        assert_eq!(poll_behind(poll, 24, false), Duration::from_secs(1));
        assert_eq!(poll_behind(Duration::from_secs(30), 999, true), Duration::from_secs(30));
        // Polls per second of a whole queue of 1,000 waiters.
        let rate: f64 = (0..1_000).map(|ahead| 1.0 / poll_behind(poll, ahead, true).as_secs_f64()).sum();
        assert!(rate < 300.0, "{rate}");
    }

    #[test]
    fn the_more_wait_the_less_often_each_of_them_looks() {
        let poll = Duration::from_millis(100);
        assert_eq!(poll_among(poll, 1), poll);
        assert_eq!(poll_among(poll, 200), poll);
        assert_eq!(poll_among(poll, 1_000), Duration::from_millis(500));
        assert_eq!(poll_among(poll, 100_000), SLOWEST);
        assert_eq!(poll_among(Duration::from_secs(30), 1), Duration::from_secs(30));
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::model::{
        Acquire, Ask, Holder, LockName, LockOp, LockRecord, Metadata, Mode, Outcome, Priority, Slots,
        Timestamp, Ttl,
    };
    use crate::store::clock;

    fn lease() -> Lease {
        let ask = Ask {
            lease_id: clock::new_lease_id(),
            holder: Holder::new("ada").unwrap(),
            mode: Mode::default(),
            slots: Slots::default(),
            priority: Priority::default(),
            ttl: Ttl::from_secs(10),
            metadata: Metadata::default(),
            process: None,
        };
        let op = LockOp::Acquire(Acquire { ask: Arc::new(ask), queue: None, steal_after: None });
        let mut record = LockRecord::new(LockName::new("lock").unwrap());
        match record.apply(&op, Timestamp::from_micros(1_000_000)).outcome {
            Outcome::Granted(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_lease_goes_only_to_the_waiter_of_its_store_and_lock() {
        let (lease, waiters, a) = (lease(), Waiters::default(), LockName::new("a").unwrap());
        let (id, poll, since) = (lease.ask.lease_id, Duration::from_secs(5), BootInstant::now());
        let mut waiter = waiters.polling(Some(&a), id, poll);
        let mut other_lock = waiters.polling(Some(&LockName::new("b").unwrap()), id, poll);
        let mut other_store = Waiters::default().polling(Some(&a), id, poll);
        let mut relay = waiters.polling(None, id, poll);
        assert!(waiters.wake_here(&a, vec![lease.clone()], since).is_empty());
        assert!(matches!(waiter.next(poll).await, Wakeup::Served(_)));
        for other in [&mut other_lock, &mut other_store, &mut relay] {
            assert!(matches!(other.next(poll).await, Wakeup::Rung));
        }
        drop(waiter);
        assert_eq!(waiters.wake_here(&a, vec![lease.clone()], since), [lease], "its waiter is elsewhere");
    }

    #[tokio::test]
    async fn a_lease_that_answers_the_last_request_counts_from_before_it() {
        let (lease, waiters, lock) = (lease(), Waiters::default(), LockName::new("lock").unwrap());
        let mut changes = waiters.polling(Some(&lock), lease.ask.lease_id, Duration::from_secs(5));
        let since = BootInstant::now();
        assert!(waiters.asks(&lock, &lease.ask.lease_id, 7, since));
        served_by_number(&lease, 7);
        match changes.next(Duration::MAX).await {
            Wakeup::Served(told) => assert_eq!((told.lease, told.since), (lease, since)),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_lease_that_answers_another_request_only_wakes() {
        let (lease, waiters, lock) = (lease(), Waiters::default(), LockName::new("lock").unwrap());
        let mut changes = waiters.polling(Some(&lock), lease.ask.lease_id, Duration::from_secs(5));
        served_by_number(&lease, 7);
        assert!(matches!(changes.next(Duration::MAX).await, Wakeup::Rung));
        waiters.asks(&lock, &lease.ask.lease_id, 7, BootInstant::now());
        waiters.asks(&lock, &lease.ask.lease_id, 8, BootInstant::now());
        served_by_number(&lease, 7);
        assert!(matches!(changes.next(Duration::MAX).await, Wakeup::Rung));
    }

    #[tokio::test]
    async fn a_waiter_that_asks_again_forgets_the_lease_that_was_delivered() {
        let (lease, waiters, lock) = (lease(), Waiters::default(), LockName::new("lock").unwrap());
        let mut changes = waiters.polling(Some(&lock), lease.ask.lease_id, Duration::from_secs(5));
        waiters.asks(&lock, &lease.ask.lease_id, 7, BootInstant::now());
        served_by_number(&lease, 7);
        waiters.asks(&lock, &lease.ask.lease_id, 8, BootInstant::now());
        assert!(matches!(changes.next(Duration::MAX).await, Wakeup::Rung));
        assert!(!waiters.asks(&lock, &clock::new_lease_id(), 9, BootInstant::now()));
    }
}
