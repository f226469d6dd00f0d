//! Lists of locks in use, beside many idle locks.

use leasehold::model::LockName;
use leasehold::store::{ListLocks, LockState, LockStore};
use leasehold::testing::TestClient;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::schema::Schema;

/// Executes a prepared list of locks with a layout from `lowest` on, and returns the blocks that it reads.
async fn blocks(client: &Client, lowest: u8) -> u64 {
    let explain = format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
         EXECUTE list ('', '', 'z', {lowest}::smallint, 500, false, NULL)"
    );
    let mut text = String::new();
    for message in client.simple_query(&explain).await.unwrap() {
        if let SimpleQueryMessage::Row(row) = message {
            text.push_str(row.get(0).unwrap());
        }
    }
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    let plan = &plan[0]["Plan"];
    assert_eq!(plan["Actual Rows"].as_f64(), Some(1.0), "{plan}");
    plan["Shared Hit Blocks"].as_u64().unwrap() + plan["Shared Read Blocks"].as_u64().unwrap()
}

#[tokio::test]
async fn a_list_of_locks_in_use_does_not_read_idle_locks() {
    let schema = Schema::new();
    let (store, client) = (schema.store().await, schema.client().await);
    let prepare = format!(
        "PREPARE list (text, text, text, smallint, bigint, boolean, bigint) AS {}",
        store.locks_in_use_statement()
    );
    client.batch_execute(&prepare).await.unwrap();
    let [one, two] =
        [1, 2].map(|number| TestClient::new(store.clone(), number, LockName::new("lock").unwrap()));
    one.acquire_for(600).await;
    two.expect_queued_for(600).await;
    let few = blocks(&client, 2).await;
    let idle = format!(
        "INSERT INTO {0}.locks (name, token, version, layout)
             SELECT 'idle-' || n, n, 1, 0 FROM generate_series(1, 50000) n;
         ANALYZE {0}.locks",
        schema.name
    );
    client.batch_execute(&idle).await.unwrap();
    for (state, lowest) in [(LockState::Held, 1), (LockState::InUse, 1), (LockState::Waited, 2)] {
        let query = ListLocks::default().state(Some(state));
        let listed = store.list(&query).await.unwrap().items;
        assert_eq!(listed.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(), ["lock"]);
        let blocks = blocks(&client, lowest).await;
        assert!(blocks <= few + 30, "{few} blocks alone, {blocks} beside idle locks");
    }
}
