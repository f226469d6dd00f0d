//! Operations that the client applies by the rules and stores by compare-and-swap: their round trips,
//! conflicts with other clients, and lost answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{Acquire, EventKind, LeaseId, LockName, LockOp, Outcome, Sweep, Ttl};
use leasehold::store::redis::RedisStore;
use leasehold::store::{Cursor, EventRange, ListEvents, Store};
use leasehold::testing::TestClient;
use uuid::Uuid;

use super::server::Server;
use super::support::{open, options};
use crate::engines::proxy::{Fault, NextFault, Proxy};

async fn store_at(url: &str) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(options(url, "leasehold")).await.unwrap())
}

/// Server behind a proxy, and a store that uses the proxy.
async fn proxied() -> (Server, Proxy, Arc<RedisStore>) {
    let server = Server::start(&[]).await;
    let proxy = Proxy::before(format!("127.0.0.1:{}", server.port()).parse().unwrap());
    let store = store_at(&format!("redis://{}", proxy.address())).await;
    (server, proxy, store)
}

/// Returns a client whose requests have an id of their own.
fn client(store: &Arc<RedisStore>, lock: &str) -> TestClient {
    let mut client = TestClient::new(store.clone(), 1, LockName::new(lock).unwrap());
    client.request.lease_id = LeaseId::from_uuid(Uuid::now_v7());
    client
}

async fn events(store: &RedisStore, lock: &LockName) -> Vec<EventKind> {
    let range = EventRange::After(Cursor::start());
    let query = ListEvents::default().lock(Some(lock.clone())).span(range).limit(1000);
    store.locks().history(&query).await.unwrap().items.into_iter().map(|event| event.kind).collect()
}

#[tokio::test]
async fn frequent_operations_take_one_round_trip_and_the_others_two() {
    let server = Server::start(&[]).await;
    for attempt in 0..50 {
        if round_trips_are_as_expected(&server, attempt).await {
            return;
        }
    }
    panic!("events were moved to the history in every attempt");
}

/// Counts the scripts of each operation. Returns `false` if events were moved to the history meanwhile, which
/// needs scripts too and happens in the background, after a random number of operations.
async fn round_trips_are_as_expected(server: &Server, attempt: u32) -> bool {
    let clock = crate::engines::support::clock();
    let store = open(&server.url(), &format!("attempt-{attempt}"), &clock).await;
    let moved_before = server.calls("xadd").await;
    let scripts = async || server.calls("evalsha").await + server.calls("eval").await;
    // Loads the scripts.
    let [one, two] = [client(&store, "first").shared(), client(&store, "first").shared()];
    one.acquire().await;
    two.acquire().await;
    macro_rules! round_trips {
        ($expected:literal, $operation:expr) => {{
            let before = scripts().await;
            clock.advance(Duration::from_millis(1));
            let result = $operation.await;
            let count = scripts().await - before;
            if count != $expected {
                tokio::time::sleep(Duration::from_millis(200)).await;
                if server.calls("xadd").await > moved_before {
                    return false;
                }
            }
            assert_eq!(count, $expected, stringify!($operation));
            result
        }};
    }
    let [one, two, three, four] = [0; 4].map(|_| client(&store, "lock"));
    let lease = round_trips!(1, one.acquire_for(60));
    round_trips!(1, one.renew(&lease));
    round_trips!(1, two.expect_conflict());
    for _ in 0..3 {
        clock.advance(Duration::from_secs(40));
        round_trips!(1, one.renew(&lease));
    }
    clock.advance(Duration::from_secs(40));
    round_trips!(1, one.release(&lease));
    let (released, lease) = (lease, round_trips!(1, one.acquire_for(60)));
    round_trips!(1, one.renew(&released));
    for waiter in [&two, &three, &four] {
        round_trips!(1, waiter.expect_queued_for(20));
        round_trips!(1, waiter.expect_queued_for(20));
    }
    round_trips!(1, one.renew(&lease));
    round_trips!(1, four.withdraw());
    round_trips!(1, one.release(&lease));
    let lease = two.record().await.holders[0].clone();
    round_trips!(1, three.withdraw());
    round_trips!(1, two.apply(LockOp::Sweep(Sweep::default())));
    // From here on by the slow path.
    round_trips!(2, two.request_release());
    round_trips!(2, two.renew_logged(&lease));
    round_trips!(2, one.clone().steal_after(1).priority(1).expect_queued_for(20));
    round_trips!(2, two.release_with(lease.token, Some(Ttl::from_secs(3600))));
    round_trips!(2, two.force_release(lease.token));
    round_trips!(2, one.withdraw());
    let [one, two] = [one.shared(), two.shared()];
    round_trips!(1, one.acquire_for(60));
    let lease = round_trips!(2, two.acquire_for(60));
    round_trips!(2, two.renew(&lease));
    round_trips!(2, two.release(&lease));
    clock.advance(Duration::from_secs(61));
    round_trips!(2, three.acquire_for(60));
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_are_all_applied() {
    let server = Server::start(&[]).await;
    let stores = [store_at(&server.url()).await, store_at(&server.url()).await];
    let busy: Vec<_> = (0..16)
        .map(|number| {
            let mut client = client(&stores[number % 2], "lock");
            client = if number < 8 { client.shared() } else { client.slots(3) };
            tokio::spawn(async move {
                let mut granted = 0;
                for _ in 0..20 {
                    client.request.lease_id = LeaseId::from_uuid(Uuid::now_v7());
                    if let Outcome::Granted(lease) = client.try_acquire().await {
                        granted += 1;
                        assert!(matches!(client.release(&lease).await, Outcome::Released(_)));
                    }
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for one in busy {
        granted += one.await.unwrap();
    }
    let record = client(&stores[0], "lock").record().await;
    assert!(record.holders.is_empty() && record.waiters.is_empty(), "{record:?}");
    assert_eq!(record.version, 2 * granted);
    let events = events(&stores[1], &record.name).await;
    for kind in [EventKind::Acquired, EventKind::Released] {
        assert_eq!(events.iter().filter(|one| **one == kind).count() as u64, granted);
    }
}

/// The client is far away, and the waiters refresh their tickets more often than it can send a
/// request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refreshed_tickets_are_no_conflict() {
    let (server, proxy, far) = proxied().await;
    let near = store_at(&server.url()).await;
    let [holder, waiter] = [0; 2].map(|_| client(&near, "lock").slots(2));
    let [first, second] =
        [holder.acquire_for(600).await, client(&near, "lock").slots(2).acquire_for(600).await];
    waiter.expect_queued_for(600).await;
    let stop = tokio_util::sync::CancellationToken::new();
    let count = Arc::new(AtomicUsize::new(0));
    let refreshes = {
        let (stop, count, waiter) = (stop.clone(), count.clone(), waiter.clone());
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                waiter.expect_queued_for(600).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    proxy.set(Fault::Delay(Duration::from_millis(5)));
    let operator = client(&far, "lock");
    // Fewer refreshes would prove nothing.
    while count.load(Ordering::Relaxed) < 100 {
        assert_eq!(operator.request_release().await, Outcome::ReleaseRequested(2));
    }
    stop.cancel();
    refreshes.await.unwrap();
    let record = holder.record().await;
    assert_eq!(record.waiters.len(), 1);
    // No refresh was undone, and the waiter gets the lock with its last ticket.
    assert!(matches!(operator.force_release(second.token).await, Outcome::Forced(_)));
    assert!(waiter.holds().await && holder.holds().await);
    assert!(matches!(holder.release(&first).await, Outcome::Released(_)));
}

/// A grant of the slow path does not overwrite a ticket that was refreshed after it was read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refreshed_ticket_is_granted_as_refreshed() {
    let (server, proxy, far) = proxied().await;
    let near = store_at(&server.url()).await;
    let [holder, waiter] = [client(&near, "lock"), client(&near, "lock")];
    let lease = holder.acquire_for(600).await;
    waiter.expect_queued_for(600).await;
    let operator = client(&far, "lock");
    operator.request_release().await; // Loads the scripts.
    let scripts = server.calls("evalsha").await;
    proxy.set(Fault::Delay(Duration::from_millis(200)));
    let forced = tokio::spawn(async move { operator.force_release(lease.token).await });
    while server.calls("evalsha").await == scripts {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiter.expect_queued_for(5).await;
    assert!(matches!(forced.await.unwrap(), Outcome::Forced(_)));
    let record = waiter.record().await;
    let lease = record.lease(&waiter.id()).expect("the waiter has the lock");
    // A lease that was handed over lasts as long as its ticket, if that is shorter.
    assert_eq!(lease.expires_at.since(lease.acquired_at), Duration::from_secs(5));
    // Two attempts, each with a read and a write, and the refresh.
    assert_eq!(server.calls("evalsha").await - scripts, 5);
}

/// The answer to the second request is lost: the change is made once, and its caller gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_after_the_change_is_unknown_and_done_once() {
    let (_server, proxy, store) = proxied().await;
    for attempt in 0..20 {
        let one = client(&store, &format!("lock-{attempt}"));
        let token = one.acquire_for(600).await.token;
        one.request_release().await; // Loads the scripts.
        proxy.set(Fault::AfterReply(NextFault::DropReply));
        let (by, reason) = (one.request.holder.clone(), leasehold::model::Reason::new("stuck").unwrap());
        let force = LockOp::ForceRelease(leasehold::model::ForceRelease { token, by, reason });
        // The answer to the read, or to a call of the store in the background, may be the one that is lost.
        let Err(error) = one.store.locks().apply(&one.lock, &force).await else { continue };
        assert_eq!((error.code(), error.is_retryable()), ("STORE_UNAVAILABLE", true), "{error:?}");
        if matches!(one.force_release(token).await, Outcome::NotHeld(_)) {
            let events = events(&store, &one.lock).await;
            assert_eq!(events.iter().filter(|kind| **kind == EventKind::Forced).count(), 1, "{events:?}");
            return;
        }
    }
    panic!("no answer was lost");
}

/// The second request reaches the server after its client has given up and has withdrawn the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_comes_late_takes_no_lock() {
    let (server, proxy, store) = proxied().await;
    let near = store_at(&server.url()).await;
    let [holder, other, one] = [&near, &store, &store].map(|store| client(store, "lock").shared());
    holder.acquire_for(600).await;
    other.acquire_for(600).await; // Loads the scripts.
    let scripts = server.calls("evalsha").await;
    proxy.set(Fault::Delay(Duration::from_millis(300)));
    let (late, started) = (one.clone(), Instant::now());
    let acquire = tokio::spawn(async move {
        let request = Arc::new(late.request.clone());
        let op = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
        late.store.locks().apply(&late.lock, &op).await
    });
    while server.calls("evalsha").await == scripts {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(Fault::DelayRequest(Duration::from_secs(8)));
    assert_eq!(acquire.await.unwrap().unwrap_err().code(), "STORE_UNAVAILABLE");
    assert_eq!(one.withdraw().await, Outcome::Withdrawn);
    assert!(started.elapsed() < Duration::from_secs(8), "too late to prove anything");
    while !proxy.delayed_requests_are_done() {
        assert!(started.elapsed() < Duration::from_secs(24), "the delayed request was never done");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let record = holder.record().await;
    assert!(record.lease(&one.id()).is_none(), "{record:?}");
    assert_eq!(record.holders.len(), 2);
}
