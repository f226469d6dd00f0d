//! Connection of a lone caller that adds tasks: it is used, its end loses no task, and a dropped call has no
//! effect later.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Enqueued, TaskState};
use leasehold::store::postgres::PostgresStore;
use leasehold::store::{Store, TaskStore};
use leasehold::testing::task_fixture::task;

use crate::engines::postgres::schema::{Schema, last_statements};

/// Number of calls after which the connection is open, with some time to open it.
const CALLS: u128 = 60;
/// Part of the statement that adds one task.
const INSERT_ONE: &str = "task_counts SELECT $3, 2, 1 FROM clock";

/// Adds tasks one after the other, until a lone caller has its own connection.
async fn add_alone(schema: &Schema, application: &str) -> Arc<PostgresStore> {
    let options = schema.options(&format!("application_name={application}"));
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    for number in 1..=CALLS {
        add(store.tasks().unwrap(), number).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // One connection of the thread of the store, and that of the caller.
    let statements = last_statements(&schema.client().await, application).await;
    let inserts = statements.iter().filter(|sql| sql.contains(INSERT_ONE)).count();
    assert_eq!(inserts, 2, "{statements:?}");
    store
}

async fn add(tasks: &dyn TaskStore, number: u128) {
    assert_eq!(tasks.enqueue(&[task(number)]).await.unwrap(), [Enqueued::Added(task(number).id)]);
}

async fn pending(tasks: &dyn TaskStore) -> u64 {
    tasks.queues().await.unwrap()[0].counts.get(TaskState::Pending)
}

#[tokio::test]
async fn a_connection_that_is_lost_loses_no_task_of_a_lone_caller() {
    let schema = Schema::new();
    let application = format!("inline-{}", schema.name);
    let store = add_alone(&schema, &application).await;
    let tasks = store.tasks().unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";
    let ended: i64 = schema.client().await.query_one(end, &[&application]).await.unwrap().get(0);
    assert!(ended >= 2, "{ended} connections");
    for number in CALLS + 1..=CALLS + 40 {
        add(tasks, number).await;
    }
    // A task that is added again is not added twice.
    add(tasks, CALLS).await;
    assert_eq!(pending(tasks).await, u64::try_from(CALLS + 40).unwrap());
}

#[tokio::test]
async fn a_dropped_call_of_a_lone_caller_adds_no_task_later() {
    let schema = Schema::new();
    let store = add_alone(&schema, &format!("inline-{}", schema.name)).await;
    let tasks = store.tasks().unwrap();
    let other = schema.client().await;
    other.batch_execute(&format!("BEGIN; LOCK TABLE {}.tasks IN SHARE MODE", schema.name)).await.unwrap();
    let new = [task(CALLS + 1)];
    let dropped = tokio::time::timeout(Duration::from_millis(200), tasks.enqueue(&new)).await;
    assert!(dropped.is_err(), "the call did not wait for the other transaction");
    // The next operation first ends the connection of the dropped call on the server.
    assert_eq!(pending(tasks).await, u64::try_from(CALLS).unwrap());
    other.batch_execute("ROLLBACK").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(tasks.get(task(CALLS + 1).id).await.unwrap(), None);
    add(tasks, CALLS + 2).await;
    assert_eq!(pending(tasks).await, u64::try_from(CALLS + 1).unwrap());
}
