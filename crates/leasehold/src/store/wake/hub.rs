//! The waiters of this process, by lease id.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::model::{Lease, LeaseId};
use crate::store::Moment;

/// A lease that a ticket has turned into, as the process that made it so tells its waiter.
#[derive(Debug, Clone)]
pub struct HandedOver {
    /// The lease.
    pub lease: Lease,
    /// A moment before the store granted it: the lease lasts at least until its duration after this.
    pub since: Moment,
}

/// Why a waiter wakes.
#[derive(Debug)]
pub enum Wake {
    /// Whoever served it is in this process: here is the lease.
    Served(HandedOver),
    /// Somebody says that it may be its turn: ask the store.
    Rung,
    /// Nobody said anything: look.
    Poll,
}

/// How far a waiter's wake-ups come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only this process can serve it.
    Process,
    /// Every process of this machine can.
    Machine,
}

/// The time between two looks at the store by any waiters of this process, on average.
const EACH: Duration = Duration::from_micros(500);
/// Longest interval between two looks because of other waiters. Longer than the interval at which tickets are refreshed:
/// a waiter far back in a long queue only refreshes its ticket.
const SLOWEST: Duration = Duration::from_secs(4);
/// Tickets ahead that slow polling down by one interval where no wake-ups arrive: there, polling alone hands over.
const AHEAD_PER_POLL: u32 = 8;

/// The waiters of this process. One map for all stores: lease ids are unique everywhere.
static WAITING: LazyLock<Mutex<HashMap<LeaseId, Arc<Seat>>>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Seat {
    bell: Notify,
    handed_over: Mutex<Option<HandedOver>>,
    /// The number of the last asking that was sent, and a moment before that.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    asked: Mutex<Option<(u64, Moment)>>,
}

/// The wake-ups of one waiter. Dropping it ends them.
pub struct Changes {
    waiter: LeaseId,
    seat: Arc<Seat>,
    poll: Duration,
    /// Whether the engine sends wake-ups, so that polling only replaces lost ones.
    wakes: bool,
    /// Tickets before this waiter's, as it was last told.
    ahead: u32,
    /// Of one that is apart: dropped with it.
    #[cfg(feature = "http")]
    kept: Option<Box<dyn std::any::Any + Send + Sync>>,
}

/// Wakes one waiter that is not among those of this process.
#[cfg(feature = "http")]
pub(crate) struct Bell(Arc<Seat>);

#[cfg(feature = "http")]
impl Bell {
    /// It may be its turn.
    pub(crate) fn ring(&self) {
        self.0.bell.notify_one();
    }
}

impl Changes {
    pub(crate) fn new(waiter: LeaseId, reach: Reach, poll: Duration) -> Self {
        #[cfg(target_os = "linux")]
        if reach == Reach::Machine {
            super::datagram::listen();
        }
        let _ = reach;
        let seat = Arc::<Seat>::default();
        waiting().insert(waiter, seat.clone());
        Self {
            waiter,
            seat,
            poll,
            wakes: true,
            ahead: 0,
            #[cfg(feature = "http")]
            kept: None,
        }
    }

    /// Wake-ups that come by the bell alone: a server may be in this very process, and have a waiter of the same id.
    #[cfg(feature = "http")]
    pub(crate) fn apart(
        waiter: LeaseId,
        poll: Duration,
        kept: impl std::any::Any + Send + Sync,
    ) -> (Self, Bell) {
        let seat = Arc::<Seat>::default();
        let bell = Bell(seat.clone());
        (Self { waiter, seat, poll, wakes: true, ahead: 0, kept: Some(Box::new(kept)) }, bell)
    }

    /// Wake-ups that come only by the clock, for engines that cannot send any.
    pub fn polling(waiter: LeaseId, poll: Duration) -> Self {
        let mut changes = Self::new(waiter, Reach::Process, poll);
        changes.wakes = false;
        changes
    }

    /// Notes how many tickets are before this waiter's: the further back it is, the less often it polls.
    pub fn note_ahead(&mut self, ahead: u32) {
        self.ahead = ahead;
    }

    /// Whether somebody else waits for the same lease since: a caller that asks again while its first asking is not
    /// known to be over. Wake-ups go there.
    pub(crate) fn is_superseded(&self) -> bool {
        #[cfg(feature = "http")]
        if self.kept.is_some() {
            return false; // It has a bell of its own, and no seat that another could take.
        }
        !waiting().get(&self.waiter).is_some_and(|seat| Arc::ptr_eq(seat, &self.seat))
    }

    /// Waits for a wake-up, at most for `patience` and for the time until the next poll. The first in the queue polls at
    /// the engine's rate, those behind it less often, and all of them less often when very many wait in this process.
    pub async fn next(&mut self, patience: Duration) -> Wake {
        let behind = poll_behind(self.poll, self.ahead, self.wakes);
        let wait = poll_among(behind, waiting().len()).min(patience);
        let rung = tokio::time::timeout(wait, self.seat.bell.notified()).await.is_ok();
        let handed_over = self.seat.handed_over.lock().unwrap_or_else(PoisonError::into_inner).take();
        match handed_over {
            Some(handed_over) => Wake::Served(handed_over),
            None if rung => Wake::Rung,
            None => Wake::Poll,
        }
    }
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes")
            .field("waiter", &self.waiter)
            .field("poll", &self.poll)
            .finish_non_exhaustive()
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut waiting = waiting();
        // Not the seat of somebody who waits for the same lease since.
        if waiting.get(&self.waiter).is_some_and(|seat| Arc::ptr_eq(seat, &self.seat)) {
            waiting.remove(&self.waiter);
        }
    }
}

/// Poll interval of a waiter with `ahead` tickets before its own. With wake-ups it is proportional to the place in the
/// queue, so that all waiters of one lock together poll `ln(n)` times per interval.
fn poll_behind(poll: Duration, ahead: u32, wakes: bool) -> Duration {
    let polls = if wakes { ahead } else { ahead / AHEAD_PER_POLL };
    poll.saturating_mul(polls.saturating_add(1)).min(SLOWEST.max(poll))
}

/// How long one of `waiters` waits before it looks by itself. Together they look so often at most that the store has time
/// for others, and each one still looks before its ticket wants a sign of life.
fn poll_among(poll: Duration, waiters: usize) -> Duration {
    let waiters = u32::try_from(waiters).unwrap_or(u32::MAX);
    poll.max(EACH.saturating_mul(waiters).min(SLOWEST))
}

/// Wakes the waiters of these leases, and nobody else.
pub(crate) fn wake(handed_over: Vec<Lease>, since: Moment, reach: Reach) {
    for lease in wake_here(handed_over, since) {
        #[cfg(target_os = "linux")]
        if reach == Reach::Machine {
            super::datagram::send(&lease);
        }
        let _ = (&lease, reach);
    }
}

/// Wakes those waiters of these leases that are in this process; gives back the leases of those that are not.
pub(crate) fn wake_here(mut handed_over: Vec<Lease>, since: Moment) -> Vec<Lease> {
    handed_over.retain(|lease| {
        let Some(seat) = waiting().get(&lease.ask.lease_id).cloned() else {
            return true;
        };
        let handed_over = HandedOver { lease: lease.clone(), since };
        *seat.handed_over.lock().unwrap_or_else(PoisonError::into_inner) = Some(handed_over);
        seat.bell.notify_one();
        false
    });
    handed_over
}

/// Says that this waiter is about to ask the store, or has asked it and was given a place in the queue, and by which number
/// that asking will be known. False if nobody waits here.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn asks(waiter: &LeaseId, number: u64, since: Moment) -> bool {
    let Some(seat) = waiting().get(waiter).cloned() else {
        return false;
    };
    let mut asked = seat.asked.lock().unwrap_or_else(PoisonError::into_inner);
    *asked = Some((number, since));
    // What it was told before is older than what it will be told now.
    *seat.handed_over.lock().unwrap_or_else(PoisonError::into_inner) = None;
    true
}

/// Gives a waiter the lease that its ticket has turned into, as it comes from another process, if it is newer than the last
/// asking, which is known by a number: then the lease was granted after that asking was sent, and lasts at least as long from
/// there. Anything else is a reason to ask the store, and no more.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn served_from_afar(lease: Lease, is_newer_than: impl FnOnce(u64) -> bool) {
    let Some(seat) = waiting().get(&lease.ask.lease_id).cloned() else {
        return;
    };
    {
        let asked = seat.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, since)) = *asked
            && is_newer_than(number)
        {
            let handed_over = HandedOver { lease, since };
            *seat.handed_over.lock().unwrap_or_else(PoisonError::into_inner) = Some(handed_over);
        }
    }
    seat.bell.notify_one();
}

/// Whether this waiter is in this process.
#[cfg(feature = "postgres")]
pub(crate) fn waits_here(waiter: &LeaseId) -> bool {
    waiting().contains_key(waiter)
}

/// Waiters of this process, so many at most.
#[cfg(feature = "postgres")]
pub(crate) fn some_who_wait_here(most: usize) -> Vec<LeaseId> {
    waiting().keys().take(most).copied().collect()
}

/// Wakes one waiter without telling it why.
#[cfg(any(target_os = "linux", feature = "postgres", feature = "redis"))]
pub(crate) fn ring(waiter: &LeaseId) {
    if let Some(seat) = waiting().get(waiter) {
        seat.bell.notify_one();
    }
}

fn waiting() -> std::sync::MutexGuard<'static, HashMap<LeaseId, Arc<Seat>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod seats {
    use super::*;
    use crate::store::clock;

    #[tokio::test]
    async fn whoever_asks_again_with_the_same_id_keeps_its_seat_when_the_first_goes() {
        let id = clock::new_lease_id();
        let first = Changes::polling(id, Duration::from_secs(5));
        let second = Changes::polling(id, Duration::from_secs(5));
        assert!(first.is_superseded() && !second.is_superseded());
        drop(first);
        assert!(!second.is_superseded());
        drop(second);
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
        // All of a queue of 1,000 together, a second.
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
    async fn a_lease_that_answers_the_last_asking_counts_from_before_it() {
        let lease = lease();
        let mut changes = Changes::polling(lease.ask.lease_id, Duration::from_secs(5));
        let since = Moment::now();
        assert!(asks(&lease.ask.lease_id, 7, since));
        served_from_afar(lease.clone(), |number| number == 7);
        match changes.next(Duration::MAX).await {
            Wake::Served(told) => assert_eq!((told.lease, told.since), (lease, since)),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_lease_that_answers_another_asking_only_wakes() {
        let lease = lease();
        let mut changes = Changes::polling(lease.ask.lease_id, Duration::from_secs(5));
        served_from_afar(lease.clone(), |number| number == 7);
        assert!(matches!(changes.next(Duration::MAX).await, Wake::Rung));
        asks(&lease.ask.lease_id, 7, Moment::now());
        asks(&lease.ask.lease_id, 8, Moment::now());
        served_from_afar(lease, |number| number == 7);
        assert!(matches!(changes.next(Duration::MAX).await, Wake::Rung));
    }

    #[tokio::test]
    async fn whoever_asks_again_forgets_what_it_was_told() {
        let lease = lease();
        let mut changes = Changes::polling(lease.ask.lease_id, Duration::from_secs(5));
        asks(&lease.ask.lease_id, 7, Moment::now());
        served_from_afar(lease.clone(), |number| number == 7);
        asks(&lease.ask.lease_id, 8, Moment::now());
        assert!(matches!(changes.next(Duration::MAX).await, Wake::Rung));
        assert!(!asks(&clock::new_lease_id(), 9, Moment::now()));
    }
}
