//! Number of connections of a process with little work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold::store::postgres::PostgresStore;
use tokio_postgres::Client;

use super::schema::Schema;

/// Connects a store whose connections can be counted.
async fn counted(schema: &Schema) -> Leasehold {
    let settings = format!("application_name={}", schema.name);
    Leasehold::with_store(Arc::new(PostgresStore::connect(schema.options(&settings)).await.unwrap())).unwrap()
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
