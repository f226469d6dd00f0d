//! Lost responses, late requests, and a throttling service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold::model::{Acquire, EventKind, LockName, LockOp, Outcome};
use leasehold::store::{ListEvents, Store};
use leasehold::testing::TestClient;

use super::fault_proxy::{Action, FaultProxy, once};
use super::support::{at, new_table, separate_client};

fn player(store: &Arc<dyn Store>, number: u128) -> TestClient {
    let id = u128::from(fastrand::u64(..)) << 64 | number;
    TestClient::new(store.clone(), id, LockName::new("lock").unwrap())
}

async fn events(store: &Arc<dyn Store>) -> usize {
    store.locks().history(&ListEvents::default()).await.unwrap().items.len()
}

#[tokio::test]
async fn a_write_whose_response_was_lost_is_recognized() {
    let at = at();
    let url = new_table(&at).await;
    let direct = separate_client(&url).await;
    let proxy = FaultProxy::before(&url, once("PutItem", Action::LoseResponse)).await;
    let a = player(&separate_client(&proxy.url(&url)).await, 1);
    let lease = a.acquire().await;
    assert_eq!(direct.locks().get(&a.lock).await.unwrap().unwrap().lease(&a.id()), Some(&lease));
    // The write was made once: one version, one event.
    assert_eq!(a.record().await.version, 1);
    assert_eq!(events(&direct).await, 1);

    let proxy = FaultProxy::before(&url, once("PutItem", Action::LoseResponse)).await;
    let mut again = a.clone();
    again.store = separate_client(&proxy.url(&url)).await;
    assert!(
        matches!(again.release(&lease).await, Outcome::Released(_)),
        "the release of this client, not of another one"
    );
    assert_eq!(events(&direct).await, 2);
}

#[tokio::test]
async fn a_release_whose_response_was_lost_is_recognized_after_another_client_acquired() {
    let at = at();
    let url = new_table(&at).await;
    let direct = separate_client(&url).await;
    let (a, b) = (player(&direct, 1), player(&direct, 2));
    let lease = a.acquire().await;
    // While the response is lost and the write is resent, another client acquires the lock.
    let puts = Arc::new(AtomicU32::new(0));
    let seen = puts.clone();
    let proxy = FaultProxy::before(&url, move |operation| match operation {
        "PutItem" => match seen.fetch_add(1, Ordering::SeqCst) {
            0 => Action::LoseResponse,
            1 => Action::HoldBack(Duration::from_millis(500)),
            _ => Action::Pass,
        },
        _ => Action::Pass,
    })
    .await;
    let mut again = a.clone();
    again.store = separate_client(&proxy.url(&url)).await;
    let released = tokio::spawn(async move { again.release(&lease).await });
    while !matches!(b.try_acquire().await, Outcome::Granted(_)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let outcome = released.await.unwrap();
    assert!(matches!(outcome, Outcome::Released(_)), "{outcome:?}");
    assert!(b.holds().await);
}

/// The other client writes so often that the item no longer names the write of the release.
#[tokio::test]
async fn a_release_whose_response_was_lost_is_a_success_after_many_writes_of_another_client() {
    let at = at();
    let url = new_table(&at).await;
    let direct = separate_client(&url).await;
    let (a, b) = (player(&direct, 1), player(&direct, 2));
    let lease = a.acquire().await;
    let puts = AtomicU32::new(0);
    let proxy = FaultProxy::before(&url, move |operation| match operation {
        "PutItem" => match puts.fetch_add(1, Ordering::SeqCst) {
            0 => Action::LoseResponse,
            1 => Action::HoldBack(Duration::from_secs(1)),
            _ => Action::Pass,
        },
        _ => Action::Pass,
    })
    .await;
    let leasehold = Leasehold::with_store(separate_client(&proxy.url(&url)).await).unwrap();
    let (lock, id, token) = (a.lock.clone(), a.id(), lease.token);
    let released = tokio::spawn(async move { leasehold.locks().release(lock, id, token).await });
    let held = loop {
        if let Outcome::Granted(held) = b.try_acquire().await {
            break held;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    for _ in 0..8 {
        b.renew(&held).await;
    }
    released.await.unwrap().unwrap();
    assert!(b.holds().await);
}

#[tokio::test]
async fn a_release_request_whose_response_was_lost_is_recognized_after_the_holder_released() {
    let at = at();
    let url = new_table(&at).await;
    let direct = separate_client(&url).await;
    let a = player(&direct, 1);
    let lease = a.acquire().await;
    // While the response is lost and the write is resent, the holder releases the lock.
    let puts = Arc::new(AtomicU32::new(0));
    let seen = puts.clone();
    let proxy = FaultProxy::before(&url, move |operation| match operation {
        "PutItem" => match seen.fetch_add(1, Ordering::SeqCst) {
            0 => Action::LoseResponse,
            1 => Action::HoldBack(Duration::from_millis(500)),
            _ => Action::Pass,
        },
        _ => Action::Pass,
    })
    .await;
    let b = player(&separate_client(&proxy.url(&url)).await, 2);
    let requested = tokio::spawn(async move { b.request_release().await });
    while a.record().await.holders[0].release_request.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(matches!(a.release(&lease).await, Outcome::Released(_)));
    assert_eq!(requested.await.unwrap(), Outcome::ReleaseRequested(1));
    let history = direct.locks().history(&ListEvents::default()).await.unwrap().items;
    let requests = history.iter().filter(|event| event.kind == EventKind::ReleaseRequested);
    assert_eq!(requests.count(), 1);
}

#[tokio::test]
async fn a_dropped_call_takes_effect_before_the_next_or_never() {
    let at = at();
    let url = new_table(&at).await;
    let proxy = FaultProxy::before(&url, once("PutItem", Action::HoldBack(Duration::from_millis(700)))).await;
    let a = player(&separate_client(&proxy.url(&url)).await, 1);
    let op =
        LockOp::Acquire(Acquire { request: Arc::new(a.request.clone()), queue: None, steal_after: None });
    let dropped = tokio::time::timeout(Duration::from_millis(200), a.store.locks().apply(&a.lock, &op)).await;
    assert!(dropped.is_err(), "the call completed");
    assert_eq!(a.withdraw().await, Outcome::Withdrawn);
    assert!(a.record().await.holders.is_empty());
    player(&a.store, 2).acquire().await;
}

/// The request outlives its call, and reaches the table after its caller has gone.
#[tokio::test]
async fn an_in_doubt_write_cannot_take_effect_after_it_was_withdrawn() {
    let at = at();
    let url = new_table(&at).await;
    let held_back = Arc::new(AtomicU32::new(0));
    let count = held_back.clone();
    let proxy = FaultProxy::before(&url, move |operation| {
        if operation == "PutItem" && count.fetch_add(1, Ordering::SeqCst) < 3 {
            Action::HoldBack(Duration::from_secs(7))
        } else {
            Action::Pass
        }
    })
    .await;
    let a = player(&separate_client(&proxy.url(&url)).await, 1);
    let op =
        LockOp::Acquire(Acquire { request: Arc::new(a.request.clone()), queue: None, steal_after: None });
    let started = Instant::now();
    let error = a.store.locks().apply(&a.lock, &op).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error}");
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    assert_eq!(a.withdraw().await, Outcome::Withdrawn);
    assert!(started.elapsed() < Duration::from_secs(7), "the test was too slow to prove anything");
    while started.elapsed() < Duration::from_secs(13) && held_back.load(Ordering::SeqCst) <= 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The last request was sent at 3 s at the latest.
    tokio::time::sleep(Duration::from_secs(11).saturating_sub(started.elapsed())).await;
    assert!(
        a.store.locks().get(&a.lock).await.unwrap().is_none(),
        "the write took effect after it was withdrawn"
    );
}

#[tokio::test]
async fn throttled_requests_are_retried_and_then_reported() {
    let at = at();
    let url = new_table(&at).await;
    let left = Arc::new(AtomicU32::new(2));
    let failures = left.clone();
    let proxy = FaultProxy::before(&url, move |operation| {
        let fails =
            failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if operation == "PutItem" && fails {
            Action::Refuse(400, "ProvisionedThroughputExceededException")
        } else {
            Action::Pass
        }
    })
    .await;
    left.store(0, Ordering::SeqCst);
    let a = player(&separate_client(&proxy.url(&url)).await, 1);
    left.store(2, Ordering::SeqCst);
    let lease = a.acquire().await;
    left.store(1000, Ordering::SeqCst);
    let before = proxy.requests.load(Ordering::SeqCst);
    let release =
        LockOp::Release(leasehold::model::Release { lease_id: a.id(), token: lease.token, at_least: None });
    let error = a.store.locks().apply(&a.lock, &release).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.is_retryable());
    assert!(error.to_string().contains("more requests than its capacity allows"), "{error}");
    assert_eq!(proxy.requests.load(Ordering::SeqCst) - before, 3, "three attempts");
    left.store(0, Ordering::SeqCst);
    assert!(matches!(a.release(&lease).await, Outcome::Released(_)));
}

#[tokio::test]
async fn service_errors_are_mapped_to_store_errors() {
    let at = at();
    let url = new_table(&at).await;
    let failure = Arc::new(AtomicU32::new(0));
    let current = failure.clone();
    let proxy = FaultProxy::before(&url, move |_| match current.load(Ordering::SeqCst) {
        0 => Action::Pass,
        1 => Action::Refuse(500, "InternalServerError"),
        2 => Action::Refuse(400, "ExpiredTokenException"),
        3 => Action::Refuse(400, "InvalidSignatureException: expected x-amz-security-token:s3cr3t"),
        4 => Action::Refuse(400, "AccessDeniedException"),
        5 => Action::Refuse(400, "ResourceNotFoundException"),
        6 => Action::Refuse(400, "ValidationException: Item size has exceeded the maximum allowed size"),
        _ => Action::Refuse(400, "ValidationException: The provided key element does not match the schema"),
    })
    .await;
    let store = separate_client(&proxy.url(&url)).await;
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
        failure.store(number, Ordering::SeqCst);
        let error = store.locks().get(&name).await.unwrap_err();
        assert_eq!(error.code(), code, "{number}: {error}");
        assert!(!format!("{error:?}").contains("s3cr3t"), "the error shows signed data");
    }
}

#[tokio::test]
async fn an_unreachable_service_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("dynamodb://locks?region=us-east-1&endpoint=http://127.0.0.1:{port}");
    let error = leasehold::store::connect(&url.parse().unwrap()).await.err().unwrap();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error}");
}
