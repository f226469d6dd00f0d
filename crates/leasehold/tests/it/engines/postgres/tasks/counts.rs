//! Counts of tasks: changes that are folded into their sums in the background.

use std::time::Duration;

use leasehold::model::TaskState;
use leasehold::store::Store;
use tokio_postgres::{Client, Row};

use crate::engines::postgres::schema::Schema;

/// Adds one to the count of pending tasks of a queue, this number of times.
async fn add_changes(client: &Client, schema: &Schema, changes: u32) {
    let sql = format!(
        "INSERT INTO {}.task_counts SELECT 'q', 2, 1 FROM generate_series(1, {changes})",
        schema.name
    );
    client.batch_execute(&sql).await.unwrap();
}

/// More changes than one statement folds.
#[tokio::test]
async fn all_changes_of_counts_are_folded_after_one_recovery() {
    let schema = Schema::new();
    let (store, client) = (schema.store().await, schema.client().await);
    let tasks = store.tasks().unwrap();
    add_changes(&client, &schema, 50_000).await;
    tasks.recover(10).await.unwrap();
    let rows = format!("SELECT count(*) FROM {}.task_counts", schema.name);
    let folded = async {
        while client.query_one(&rows, &[]).await.unwrap().get::<_, i64>(0) > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), folded).await.expect("all changes are folded");
    assert_eq!(tasks.queues().await.unwrap()[0].counts.get(TaskState::Pending), 50_000);
}

#[tokio::test]
async fn one_session_at_a_time_folds_counts() {
    let schema = Schema::new();
    let fold = schema.store().await.fold_statement();
    let (mut one, two) = (schema.client().await, schema.client().await);
    add_changes(&two, &schema, 3).await;
    // Whether the session had the turn, the number of changes, and that of their sums.
    let read = |row: Row| (row.get::<_, bool>(0), row.get::<_, i64>(1), row.get::<_, i64>(2));
    let transaction = one.transaction().await.unwrap();
    assert_eq!(read(transaction.query_one(&fold, &[]).await.unwrap()), (true, 3, 1));
    assert_eq!(read(two.query_one(&fold, &[]).await.unwrap()), (false, 0, 0));
    transaction.commit().await.unwrap();
    assert_eq!(read(two.query_one(&fold, &[]).await.unwrap()), (true, 1, 1));
}
