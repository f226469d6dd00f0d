//! Restart of the machine: leases last for their whole ttl again, due times stay, and acknowledged writes are kept.

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold::model::{AttemptResult, LeaseTasks, NewTask, Settle, TaskState, Timestamp, Ttl};
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{Clock, Store};
use leasehold::testing::task_fixture::{numbers, queue, task, worker};

use crate::engines::sqlite::suite::open;
use crate::engines::support::clock;

fn lease_request() -> LeaseTasks {
    LeaseTasks::new(worker(1), vec![queue("q")], 10, Ttl::from_secs(30))
}

#[tokio::test]
async fn a_lease_from_before_the_restart_expires_even_if_the_clock_was_set_back() {
    let (folder, before) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("store.db");
    let store = open(&path, &before, 1).await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task(1), task(2).after(7200)]).await.unwrap();
    let leased = tasks.lease(&lease_request()).await.unwrap().tasks;
    drop(store);
    let after = Clock::manual(Timestamp::from_micros(before.now().as_micros() - 3_600_000_000));
    let store = open(&path, &after, 2).await;
    let tasks = store.tasks().unwrap();
    assert_eq!(tasks.recover(10).await.unwrap().expired(), 0, "the worker may be on another machine");
    after.advance(Duration::from_secs(30));
    assert_eq!(tasks.recover(10).await.unwrap().returned, 1);
    after.advance(Duration::from_millis(500));
    let again = tasks.lease(&lease_request()).await.unwrap().tasks;
    assert_eq!(numbers(&again), [1]);
    let done = Settle { id: again[0].id, token: again[0].token, result: AttemptResult::Done(None) };
    tasks.settle(&[done]).await.unwrap();
    assert!(again[0].token > leased[0].token, "tokens rise although the clock was set back");
    // A scheduled task keeps its due time.
    let due = tasks.get(task(2).id).await.unwrap().unwrap().run_at;
    assert_eq!(due.as_micros(), before.now().as_micros() + 7_200_000_000);
    after.advance(due.since(after.now()));
    assert_eq!(numbers(&tasks.lease(&lease_request()).await.unwrap().tasks), [2]);
}

/// The clock may have jumped with the restart: no other worker may get the task before the worker on another machine
/// can send a heartbeat.
#[tokio::test]
async fn a_restart_leaves_a_worker_its_full_ttl_and_a_runner_a_minute() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("store.db");
    let store = open(&path, &clock, 1).await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task(1)]).await.unwrap();
    tasks.lease(&lease_request()).await.unwrap();
    let waits = NewTask { runner_ttl: Some(Ttl::from_secs(30)), ..task(2) };
    tasks.enqueue(&[waits]).await.unwrap();
    clock.advance(Duration::from_hours(1));
    let store = open(&path, &clock, 2).await;
    let tasks = store.tasks().unwrap();
    assert_eq!(tasks.recover(10).await.unwrap().expired(), 0);
    let state = async |number| tasks.get(task(number).id).await.unwrap().unwrap().state;
    assert_eq!((state(1).await, state(2).await), (TaskState::Running, TaskState::Pending));
    clock.advance(Duration::from_secs(29));
    assert_eq!(tasks.recover(10).await.unwrap().expired(), 0);
    clock.advance(Duration::from_secs(1));
    assert_eq!(tasks.recover(10).await.unwrap().returned, 1, "the worker is dead");
    clock.advance(Duration::from_secs(30));
    assert_eq!(tasks.recover(10).await.unwrap().expired(), 1, "the runner is dead");
    assert_eq!(state(2).await, TaskState::Failed);
}

/// After a restart the engine's clock is ahead of the last write by up to a minute, whatever time has passed.
#[tokio::test]
async fn a_quick_restart_of_the_machine_takes_no_task_from_its_worker() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task(1)]).await.unwrap();
    assert_eq!(tasks.lease(&lease_request()).await.unwrap().tasks.len(), 1);
    drop(store);
    // As if the file had been written in a boot with two more hours of uptime.
    let conn = rusqlite::Connection::open(&path).unwrap();
    for (key, value) in [("boottime", 7_200_000_000_i64), ("clock_offset", -7_200_000_000)] {
        let sql = "UPDATE leasehold_meta SET value = value + ?2 WHERE key = ?1";
        assert_eq!(conn.execute(sql, (key, value)).unwrap(), 1);
    }
    drop(conn);
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    assert_eq!(store.tasks().unwrap().recover(10).await.unwrap().expired(), 0);
}

/// The log is synced before a call returns, so a power cut leaves at least the files as they are at that time.
#[tokio::test]
async fn acknowledged_writes_are_in_the_files() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let store = open(&folder.path().join("store.db"), &clock, 1).await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task(1), task(2)]).await.unwrap();
    let leased = tasks.lease(&lease_request()).await.unwrap().tasks;
    let done = Settle { id: leased[0].id, token: leased[0].token, result: AttemptResult::Done(None) };
    tasks.settle(&[done]).await.unwrap();
    let kept = copy(folder.path());
    let store = open(&kept.path().join("store.db"), &clock, 2).await;
    let states = async |number| store.tasks().unwrap().get(task(number).id).await.unwrap().unwrap().state;
    assert_eq!((states(1).await, states(2).await), (TaskState::Succeeded, TaskState::Running));
}

fn copy(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in ["store.db", "store.db-wal"] {
        fs::copy(folder.join(file), copy.path().join(file)).unwrap();
    }
    copy
}
