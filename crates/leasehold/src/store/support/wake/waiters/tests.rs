//! Tests of the waiters of this process.

use super::*;
use crate::store::clock;

/// Held by a test with many waiters: the time in which all waiters wake depends on their number in the process.
#[cfg(any(feature = "postgres", feature = "redis"))]
static MANY_WAITERS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

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
    let _alone = MANY_WAITERS.lock().await;
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
    let _alone = MANY_WAITERS.lock().await;
    let (waiters, other_store) = (Waiters::default(), Waiters::default());
    let subscribe = |store: Waiters| {
        let mut waiter = store.subscribe(Some(&lock("lock")), clock::new_lease_id(), Duration::from_secs(1));
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
        assert!(matches!(late, Ok(Wakeup::Missed)), "{late:?}");
        0
    });
    let early = futures_util::future::join_all(woken).await.iter().sum::<u32>();
    assert!((300..700).contains(&early), "{early}");
    assert!(matches!(elsewhere.next(Duration::from_millis(1)).await, Wakeup::Poll));
}

#[cfg(any(feature = "postgres", feature = "redis"))]
#[tokio::test]
async fn a_waiter_that_is_woken_by_itself_does_not_wait_for_all_others() {
    let _alone = MANY_WAITERS.lock().await;
    let waiters = Waiters::default();
    let subscribe = || waiters.subscribe(Some(&lock("lock")), clock::new_lease_id(), Duration::from_secs(9));
    let _others: Vec<_> = (0..8_000).map(|_| subscribe()).collect();
    let mut waiter = subscribe();
    let (key, soon) = (waiter.registration.key, Duration::from_millis(1));
    let mut next = std::pin::pin!(waiter.next(Duration::MAX));
    // As when the connection is lost and established again.
    for _ in 0..2 {
        waiters.wake_all();
        if tokio::time::timeout(soon, &mut next).await.is_ok() {
            return; // Its delay happened to be short.
        }
    }
    wake_by_id(&key);
    let woken = tokio::time::timeout(Duration::from_millis(500), next).await;
    assert!(matches!(woken, Ok(Wakeup::Hint)), "{woken:?}");
}

#[cfg(any(feature = "postgres", feature = "redis"))]
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_woken_with_all_others_waits_no_longer_than_it_may() {
    let _alone = MANY_WAITERS.lock().await;
    let waiters = Waiters::default();
    let subscribe = || waiters.subscribe(Some(&lock("lock")), clock::new_lease_id(), Duration::from_secs(1));
    let mut all: Vec<_> = (0..1_000).map(|_| subscribe()).collect();
    waiters.wake_all();
    let limit = Duration::from_millis(20);
    for waiter in all.iter_mut().take(100) {
        // The paused clock has a resolution of a millisecond.
        let woken = tokio::time::timeout(limit + Duration::from_millis(2), waiter.next(limit)).await;
        assert!(matches!(woken, Ok(Wakeup::Missed)), "{woken:?}");
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

#[cfg(feature = "redis")]
mod deliveries {
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
