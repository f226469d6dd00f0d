//! Answers that are lost, requests that are late, a service that is too busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{Acquire, LockName, LockOp, Outcome};
use leasehold::store::{ListEvents, Store};
use leasehold::testing::Player;

use super::front::{Fate, Front, once};
use super::support::{alone, at, new_table};

fn player(store: &Arc<dyn Store>, number: u128) -> Player {
    let id = u128::from(fastrand::u64(..)) << 64 | number;
    Player::new(store.clone(), id, LockName::new("lock").unwrap())
}

async fn events(store: &Arc<dyn Store>) -> usize {
    store.locks().history(&ListEvents::default()).await.unwrap().items.len()
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_known_again() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let direct = alone(&url).await;
    let front = Front::before(&url, once("PutItem", Fate::LoseAnswer)).await;
    let a = player(&alone(&front.url(&url)).await, 1);
    let lease = a.takes().await;
    assert_eq!(direct.locks().get(&a.lock).await.unwrap().unwrap().lease(&a.id()), Some(&lease));
    // It was made once: one version, one event.
    assert_eq!(a.record().await.version, 1);
    assert_eq!(events(&direct).await, 1);

    let front = Front::before(&url, once("PutItem", Fate::LoseAnswer)).await;
    let mut again = a.clone();
    again.store = alone(&front.url(&url)).await;
    assert!(
        matches!(again.releases(&lease).await, Outcome::Released(_)),
        "its own release, not somebody else's"
    );
    assert_eq!(events(&direct).await, 2);
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_known_again_even_after_somebody_came_in() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let direct = alone(&url).await;
    let (a, b) = (player(&direct, 1), player(&direct, 2));
    let lease = a.takes().await;
    // While the answer is lost and the write is sent again, the next one takes the lock.
    let puts = Arc::new(AtomicU32::new(0));
    let seen = puts.clone();
    let front = Front::before(&url, move |operation| match operation {
        "PutItem" => match seen.fetch_add(1, Ordering::SeqCst) {
            0 => Fate::LoseAnswer,
            1 => Fate::HoldBack(Duration::from_millis(500)),
            _ => Fate::Pass,
        },
        _ => Fate::Pass,
    })
    .await;
    let mut again = a.clone();
    again.store = alone(&front.url(&url)).await;
    let released = tokio::spawn(async move { again.releases(&lease).await });
    while !matches!(b.asks().await, Outcome::Granted(_)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let outcome = released.await.unwrap();
    assert!(matches!(outcome, Outcome::Released(_)), "{outcome:?}");
    assert!(b.holds().await);
}

#[tokio::test]
async fn a_dropped_call_takes_effect_before_the_next_or_never() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let front = Front::before(&url, once("PutItem", Fate::HoldBack(Duration::from_millis(700)))).await;
    let a = player(&alone(&front.url(&url)).await, 1);
    let op = LockOp::Acquire(Acquire { ask: Arc::new(a.ask.clone()), queue: None, steal_after: None });
    let dropped = tokio::time::timeout(Duration::from_millis(200), a.store.locks().apply(&a.lock, &op)).await;
    assert!(dropped.is_err(), "it was answered");
    assert_eq!(a.leaves().await, Outcome::Left);
    assert!(a.record().await.holders.is_empty());
    player(&a.store, 2).takes().await;
}

/// The request outlives the call: nobody waits for it any more, and it still finds its way to the table.
#[tokio::test]
async fn a_write_that_is_adrift_cannot_land_after_it_was_taken_back() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let held_back = Arc::new(AtomicU32::new(0));
    let count = held_back.clone();
    let front = Front::before(&url, move |operation| {
        if operation == "PutItem" && count.fetch_add(1, Ordering::SeqCst) < 3 {
            Fate::HoldBack(Duration::from_secs(7))
        } else {
            Fate::Pass
        }
    })
    .await;
    let a = player(&alone(&front.url(&url)).await, 1);
    let op = LockOp::Acquire(Acquire { ask: Arc::new(a.ask.clone()), queue: None, steal_after: None });
    let started = Instant::now();
    let error = a.store.locks().apply(&a.lock, &op).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error}");
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    assert_eq!(a.leaves().await, Outcome::Left);
    assert!(started.elapsed() < Duration::from_secs(7), "too late to prove anything");
    while started.elapsed() < Duration::from_secs(13) && held_back.load(Ordering::SeqCst) <= 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The last one was sent at 3 s at the latest.
    tokio::time::sleep(Duration::from_secs(11).saturating_sub(started.elapsed())).await;
    assert!(a.store.locks().get(&a.lock).await.unwrap().is_none(), "it landed after it was taken back");
}

#[tokio::test]
async fn throttling_is_tried_again_and_then_told() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let left = Arc::new(AtomicU32::new(2));
    let more = left.clone();
    let front = Front::before(&url, move |operation| {
        let refuse =
            more.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if operation == "PutItem" && refuse {
            Fate::Refuse(400, "ProvisionedThroughputExceededException")
        } else {
            Fate::Pass
        }
    })
    .await;
    left.store(0, Ordering::SeqCst);
    let a = player(&alone(&front.url(&url)).await, 1);
    left.store(2, Ordering::SeqCst);
    let lease = a.takes().await;
    left.store(1000, Ordering::SeqCst);
    let before = front.requests.load(Ordering::SeqCst);
    let release =
        LockOp::Release(leasehold::model::Release { lease_id: a.id(), token: lease.token, at_least: None });
    let error = a.store.locks().apply(&a.lock, &release).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.is_retryable());
    assert!(error.to_string().contains("more than its capacity allows"), "{error}");
    assert_eq!(front.requests.load(Ordering::SeqCst) - before, 3, "three tries");
    left.store(0, Ordering::SeqCst);
    assert!(matches!(a.releases(&lease).await, Outcome::Released(_)));
}

#[tokio::test]
async fn what_the_service_says_is_told_in_our_words() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let fails = Arc::new(AtomicU32::new(0));
    let now = fails.clone();
    let front = Front::before(&url, move |_| match now.load(Ordering::SeqCst) {
        0 => Fate::Pass,
        1 => Fate::Refuse(500, "InternalServerError"),
        2 => Fate::Refuse(400, "ExpiredTokenException"),
        3 => Fate::Refuse(400, "InvalidSignatureException: it should have been x-amz-security-token:s3cr3t"),
        4 => Fate::Refuse(400, "AccessDeniedException"),
        5 => Fate::Refuse(400, "ResourceNotFoundException"),
        6 => Fate::Refuse(400, "ValidationException: Item size has exceeded the maximum allowed size"),
        _ => Fate::Refuse(400, "ValidationException: The provided key element does not match the schema"),
    })
    .await;
    let store = alone(&front.url(&url)).await;
    let name = LockName::new("lock").unwrap();
    let codes = [
        "STORE_UNAVAILABLE",
        "STORE_NOT_PERMITTED",
        "STORE_NOT_PERMITTED",
        "STORE_NOT_PERMITTED",
        "STORE_MISCONFIGURED",
        "STORE_UNAVAILABLE",
        "STORE_MISCONFIGURED",
    ];
    for (number, code) in (1..).zip(codes) {
        fails.store(number, Ordering::SeqCst);
        let error = store.locks().get(&name).await.unwrap_err();
        assert_eq!(error.code(), code, "{number}: {error}");
        assert!(!format!("{error:?}").contains("s3cr3t"), "what was signed is nobody's business");
    }
}

#[tokio::test]
async fn a_service_that_is_not_there_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    if at().is_none() {
        return; // The credentials come with the engine.
    }
    let url = format!("dynamodb://locks?region=us-east-1&endpoint=http://127.0.0.1:{port}");
    let error = leasehold::store::connect(&url.parse().unwrap()).await.err().unwrap();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error}");
}
