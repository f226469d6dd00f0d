//! Number of connections of a process with little work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold::model::{LockName, LockOp, Withdraw};
use leasehold::store::postgres::PostgresStore;
use leasehold::store::{LockStore, Store};
use leasehold::testing::TestClient;
use leasehold::testing::task_fixture::task;
use tokio_postgres::Client;

use super::faults::proxy_before;
use super::schema::{Schema, until_only_the_listener_remains};
use crate::engines::proxy::Fault;

/// Connects a store whose connections can be counted.
async fn counted_store(schema: &Schema) -> Arc<PostgresStore> {
    let settings = format!("application_name={}", schema.name);
    Arc::new(PostgresStore::connect(schema.options(&settings)).await.unwrap())
}

async fn counted(schema: &Schema) -> Leasehold {
    Leasehold::with_store(counted_store(schema).await).unwrap()
}

async fn connections(client: &Client, schema: &Schema) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    client.query_one(sql, &[&schema.name]).await.unwrap().get(0)
}

async fn wait_for_one_connection(client: &Client, schema: &Schema) {
    let started = Instant::now();
    while connections(client, schema).await != 1 {
        assert!(
            started.elapsed() < Duration::from_secs(15),
            "{} connections",
            connections(client, schema).await
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_process_needs_one_connection() {
    let schema = Schema::new();
    let client = schema.client().await;
    let holder = Leasehold::with_store(schema.store().await).unwrap();
    let guard = holder.lock("lock").acquire().await.unwrap();
    let waiting = counted(&schema).await;
    let timeout = Duration::from_mins(1);
    let waiter = tokio::spawn(async move { waiting.lock("lock").wait(timeout).acquire().await });
    wait_for_one_connection(&client, &schema).await;
    // Every few seconds the waiter refreshes its ticket and queries the lock, with the same connection.
    let (started, mut samples, mut more) = (Instant::now(), 0, 0);
    while started.elapsed() < Duration::from_secs(8) {
        let count = connections(&client, &schema).await;
        // The server may still list a connection that was closed; on a busy machine several, because a call that
        // is not answered in a second is repeated on another connection.
        assert!((1..=6).contains(&count), "{count} connections");
        (samples, more) = (samples + 1, more + u32::from(count > 1));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(more < samples, "more than one connection in all {samples} samples");
    wait_for_one_connection(&client, &schema).await;
    assert_eq!(guard.leases()[0].0.as_str(), "lock");
    // The notification arrives on that connection, too.
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(10), waiter).await.unwrap().unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_one_connection_for_its_renewals() {
    let schema = Schema::new();
    let client = schema.client().await;
    let holder = counted(&schema).await;
    let guard = holder.lock("lock").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    holder.locks().status("lock").await.unwrap();
    wait_for_one_connection(&client, &schema).await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(7) {
        assert_eq!(connections(&client, &schema).await, 1, "after {:?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(holder.locks().status("lock").await.unwrap().holders[0].renewals > 0);
    guard.release().await.unwrap();
}

/// Tasks, and the notification of other processes, have connections of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_has_added_a_task_keeps_one_connection() {
    let schema = Schema::new();
    let client = schema.client().await;
    let store = counted_store(&schema).await;
    store.tasks().unwrap().enqueue(&[task(1)]).await.unwrap();
    wait_for_one_connection(&client, &schema).await;
}

/// An operation that waits for a locked row has a connection of its own, which is returned when no other one is in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_waited_for_a_row_is_closed() {
    let schema = Schema::new();
    let client = schema.client().await;
    let store = counted_store(&schema).await;
    let player = TestClient::new(store.clone(), 1, LockName::new("lock").unwrap());
    let lease = player.acquire().await;
    player.release(&lease).await;
    let _waits = player.subscribe();
    until_only_the_listener_remains(&client, &schema.name).await;
    let other_session = schema.client().await;
    let lock_row = format!("BEGIN; SELECT FROM {}.locks FOR UPDATE", schema.name);
    other_session.batch_execute(&lock_row).await.unwrap();
    let withdraw = LockOp::Withdraw(Withdraw { lease_id: player.id() });
    let waits = tokio::spawn({
        let (store, lock) = (store.clone(), player.lock.clone());
        async move { store.apply(&lock, &withdraw).await }
    });
    // Until the idle connections have been closed, and for less than an operation waits for a row.
    tokio::time::sleep(Duration::from_millis(1800)).await;
    other_session.batch_execute("COMMIT").await.unwrap();
    // On a busy machine the operation may have failed.
    let _ = waits.await.unwrap();
    wait_for_one_connection(&client, &schema).await;
}

/// The server stops answering while the connection that listens is borrowed: it can be borrowed again afterwards.
#[tokio::test]
async fn a_borrowed_connection_is_given_back_after_a_failure() {
    let schema = Schema::new();
    let client = schema.client().await;
    let (proxy, options) = proxy_before(&schema, &format!("application_name={}", schema.name));
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let player = |number| TestClient::new(store.clone(), number, LockName::new("lock").unwrap());
    let _waits = player(1).subscribe();
    // Until only the connection that listens and the inline connection are left.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) || connections(&client, &schema).await != 2 {
        assert!(started.elapsed() < Duration::from_secs(30), "too many connections");
        let lease = player(2).acquire().await;
        player(2).release(&lease).await;
    }
    proxy.set(Fault::BlackHole);
    let dropped = tokio::time::timeout(Duration::from_millis(50), player(3).try_acquire()).await;
    assert!(dropped.is_err(), "{dropped:?}");
    // The inline connection is terminated through the one that listens. This fails after 5.5 s.
    tokio::time::sleep(Duration::from_secs(7)).await;
    proxy.set(Fault::None);
    let started = Instant::now();
    loop {
        wait_for_one_connection(&client, &schema).await;
        let before = proxy.counts().connections;
        player(4).withdraw().await;
        if proxy.counts().connections == before {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "each operation opens a connection");
    }
}
