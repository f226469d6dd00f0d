//! Replicas that must acknowledge a grant: of a lock that was handed over, beside other calls, and of a
//! server that has become a replica. The servers of these tests have no replica.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold::model::{Acquire, LeaseId, LockName, LockOp, Outcome};
use leasehold::store::redis::RedisStore;
use leasehold::testing::TestClient;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::server::{Server, free_port};
use super::support::options;

/// Opens a store that requires this number of replicas.
async fn store(server: &Server, wait_replicas: u32) -> Arc<RedisStore> {
    let mut options = options(&server.url(), "leasehold");
    options.wait_replicas = wait_replicas;
    Arc::new(RedisStore::connect(options).await.unwrap())
}

/// Returns a client whose requests have an id of their own.
fn client(store: &Arc<RedisStore>, lock: &str) -> TestClient {
    let mut client = TestClient::new(store.clone(), 1, LockName::new(lock).unwrap());
    client.request.lease_id = LeaseId::from_uuid(Uuid::now_v7());
    client
}

#[tokio::test]
async fn a_waiter_is_not_granted_a_lock_that_no_replica_has() {
    let server = Server::start(&[]).await;
    let one = Leasehold::with_store(store(&server, 0).await).unwrap();
    let two = Leasehold::with_store(store(&server, 1).await).unwrap();
    let held = one.lock("lock").acquire().await.unwrap();
    let waiting =
        tokio::spawn(async move { two.lock("lock").wait(Duration::from_secs(5)).acquire().await.map(drop) });
    let is_queued = async {
        while one.locks().status("lock").await.unwrap().waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), is_queued).await.expect("the waiter is queued");
    held.release().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
}

/// The waiter has to send its request again, which waits for the replicas. Other readers learn from the
/// time that the record has a lease or a ticket.
#[tokio::test]
async fn a_lease_that_was_handed_over_is_not_seen_by_its_waiter() {
    let server = Server::start(&[]).await;
    let (plain, replicated) = (store(&server, 0).await, store(&server, 1).await);
    let (holder, waiter) = (client(&plain, "lock"), client(&replicated, "lock"));
    let lease = holder.acquire_for(600).await;
    waiter.expect_queued_for(600).await;
    assert!(waiter.peek().await.lease.is_none() && !waiter.peek().await.is_due());
    assert!(matches!(holder.release(&lease).await, Outcome::Released(_)));
    assert!(waiter.holds().await);
    let peek = waiter.peek().await;
    assert!(peek.lease.is_none() && peek.is_due() && peek.wake_at.is_some(), "{peek:?}");
}

/// An acquire of a held lock writes nothing, so only the wait for replicas is refused.
#[tokio::test]
async fn a_server_that_has_become_a_replica_is_unavailable() {
    let server = Server::start(&[]).await;
    let (plain, replicated) = (store(&server, 0).await, store(&server, 1).await);
    client(&plain, "lock").acquire_for(600).await;
    let port = free_port().to_string();
    server.command::<String>(&["REPLICAOF", "127.0.0.1", &port]).await.unwrap();
    let client = client(&replicated, "lock");
    let request = Arc::new(client.request.clone());
    let op = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
    let error = client.store.locks().apply(&client.lock, &op).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
}

/// While the server waits for replicas, it executes no other command of that connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_wait_for_the_replicas_of_other_calls() {
    let server = Server::start(&[]).await;
    let replicated = store(&server, 1).await;
    let mut holder = client(&store(&server, 0).await, "held");
    let lease = holder.acquire_for(600).await;
    holder.store = replicated.clone();
    let mut acquires = JoinSet::new();
    for number in 0..8 {
        let client = client(&replicated, &format!("lock-{number}"));
        let request = Arc::new(client.request.clone());
        let op = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
        acquires.spawn(async move {
            for _ in 0..100 {
                let _ = client.store.locks().apply(&client.lock, &op).await;
            }
        });
    }
    let is_blocked = async {
        while server.command::<String>(&["INFO", "clients"]).await.unwrap().contains("blocked_clients:0") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), is_blocked).await.expect("an acquire waits for replicas");
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        assert!(matches!(holder.renew(&lease).await, Outcome::Renewed(_)));
        fastest = fastest.min(started.elapsed());
    }
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
}
