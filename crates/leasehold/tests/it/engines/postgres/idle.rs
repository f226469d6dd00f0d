//! How many connections a process has that does little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold::store::postgres::PostgresStore;
use tokio_postgres::Client;

use super::server::Schema;

/// A store whose connections can be counted.
async fn counted(schema: &Schema) -> Leasehold {
    let settings = format!("application_name={}", schema.name);
    Leasehold::with_store(Arc::new(PostgresStore::connect(schema.options(&settings)).await.unwrap())).unwrap()
}

async fn connections(client: &Client, schema: &Schema) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    client.query_one(sql, &[&schema.name]).await.unwrap().get(0)
}

async fn until_there_is_one(client: &Client, schema: &Schema) {
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
async fn a_process_that_waits_needs_one_connection() {
    let Some(schema) = Schema::new() else { return };
    let client = schema.client().await;
    let holder = Leasehold::with_store(schema.store().await).unwrap();
    let guard = holder.lock("lock").acquire().await.unwrap();
    let waiting = counted(&schema).await;
    let patience = Duration::from_mins(1);
    let waiter = tokio::spawn(async move { waiting.lock("lock").wait(patience).acquire().await });
    until_there_is_one(&client, &schema).await;
    // It shows that it is there every few seconds, and looks at the lock: with the same connection.
    let (started, mut looks, mut more) = (Instant::now(), 0, 0);
    while started.elapsed() < Duration::from_secs(8) {
        let count = connections(&client, &schema).await;
        // The server may still have one that was closed, on a busy machine two.
        assert!((1..=3).contains(&count), "{count} connections");
        (looks, more) = (looks + 1, more + u32::from(count > 1));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(more * 2 < looks, "two connections {more} times of {looks}");
    assert_eq!(guard.leases()[0].0.as_str(), "lock");
    // The wake-up comes on that connection, too.
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(10), waiter).await.unwrap().unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_one_connection_for_its_renewals() {
    let Some(schema) = Schema::new() else { return };
    let client = schema.client().await;
    let holder = counted(&schema).await;
    let guard = holder.lock("lock").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    holder.status(&"lock".parse().unwrap()).await.unwrap();
    until_there_is_one(&client, &schema).await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(7) {
        assert_eq!(connections(&client, &schema).await, 1, "after {:?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(holder.status(&"lock".parse().unwrap()).await.unwrap().holders[0].renewals > 0);
    guard.release().await.unwrap();
}
