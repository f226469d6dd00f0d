//! Adding tasks in a transaction of the caller, on the store's own file.

use std::time::{Duration, Instant};

use leasehold::model::{Enqueued, TaskState};
use leasehold::store::Store;
use leasehold::store::sqlite::rusqlite::{Connection, TransactionBehavior};
use leasehold::testing::shop::{queue, task};

use crate::engines::sqlite::suite::open;
use crate::engines::support::clock;

/// A store, and a connection of the caller with a table of its own.
async fn both(
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
async fn a_task_comes_and_goes_with_the_callers_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut conn) = both(&folder).await;
    let tasks = store.tasks().unwrap();
    for (number, commits) in [(1, false), (2, true)] {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute("INSERT INTO tasks VALUES ('a post')", []).unwrap();
        let new = [task(number), task(number + 10).with_key("k").with_lock("l")];
        let enqueued = store.enqueue_in(&tx, &new).unwrap();
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
async fn a_worker_that_waits_notices_a_task_that_was_committed_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut conn) = both(&folder).await;
    let mut arrivals = store.tasks().unwrap().arrivals(&[queue("q")]);
    // The first look finds that others have written before.
    arrivals.next(Some(Duration::from_millis(50))).await;
    let begun = Instant::now();
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    store.enqueue_in(&tx, &[task(1)]).unwrap();
    tx.commit().unwrap();
    arrivals.next(None).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(400), "{took:?}: it polled");
}

#[tokio::test]
async fn a_transaction_on_another_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = both(&folder).await;
    let mut conn = Connection::open(folder.path().join("other.db")).unwrap();
    let tx = conn.transaction().unwrap();
    let error = store.enqueue_in(&tx, &[task(1)]).unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
    assert!(error.to_string().contains("not on the store's own file"), "{error}");
}
