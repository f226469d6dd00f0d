//! Enqueueing in a transaction of the caller, on the store's own file.

use std::time::{Duration, Instant};

use leasehold::model::{Enqueued, TaskState};
use leasehold::store::Store;
use leasehold::store::sqlite::rusqlite::{Connection, TransactionBehavior};
use leasehold::testing::task_fixture::{queue, task};

use crate::engines::sqlite::suite::open;
use crate::engines::support::clock;

/// Returns a store, and a connection of the caller with a table of its own.
async fn store_and_connection(
    folder: &tempfile::TempDir,
) -> (std::sync::Arc<leasehold::store::sqlite::SqliteStore>, Connection) {
    let path = folder.path().join("store.db");
    let store = open(&path, &clock(), 1).await;
    let conn = Connection::open(&path).unwrap();
    conn.busy_timeout(Duration::from_secs(5)).unwrap();
    conn.execute_batch("CREATE TABLE tasks (title TEXT)").unwrap();
    (store, conn)
}

#[tokio::test]
async fn tasks_are_committed_or_rolled_back_with_the_callers_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut conn) = store_and_connection(&folder).await;
    let tasks = store.tasks().unwrap();
    for (number, commits) in [(1, false), (2, true)] {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute("INSERT INTO tasks VALUES ('a post')", []).unwrap();
        let new = [task(number), task(number + 10).with_key("k").with_lock("l")];
        let enqueued = store.enqueue_in_transaction(&tx, &new).unwrap();
        assert_eq!(enqueued, [Enqueued::Added(new[0].id), Enqueued::Added(new[1].id)]);
        if commits {
            tx.commit().unwrap();
        } else {
            tx.rollback().unwrap();
        }
        assert_eq!(tasks.get(new[0].id).await.unwrap().is_some(), commits);
        assert_eq!(tasks.get(new[1].id).await.unwrap().is_some(), commits);
    }
    let rows: i64 = conn.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
    let status = tasks.queues().await.unwrap();
    assert_eq!((status.len(), status[0].counts.get(TaskState::Pending)), (1, 2));
}

#[tokio::test]
async fn a_waiting_worker_is_notified_of_a_task_from_another_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut conn) = store_and_connection(&folder).await;
    let mut arrivals = store.tasks().unwrap().subscribe_queues(&[queue("q")]);
    // The first poll finds earlier writes of other connections.
    arrivals.next(Some(Duration::from_millis(50))).await;
    let started = Instant::now();
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    store.enqueue_in_transaction(&tx, &[task(1)]).unwrap();
    tx.commit().unwrap();
    arrivals.next(None).await;
    let took = started.elapsed();
    assert!(took < Duration::from_millis(400), "{took:?}: the worker waited for its poll interval");
}

#[tokio::test]
async fn a_transaction_on_another_file_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = store_and_connection(&folder).await;
    let mut conn = Connection::open(folder.path().join("other.db")).unwrap();
    let tx = conn.transaction().unwrap();
    let error = store.enqueue_in_transaction(&tx, &[task(1)]).unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
    assert!(error.to_string().contains("not on the store's own file"), "{error}");
}
