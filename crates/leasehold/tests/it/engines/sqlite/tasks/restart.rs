//! Restart of the machine: leases end, due times stay, and acknowledged writes are kept.

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold::model::{AttemptResult, LeaseTasks, Settle, TaskState, Timestamp, Ttl};
use leasehold::store::{Clock, Store};
use leasehold::testing::shop::{Shop, numbers, queue, task, worker};

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
    let done = Settle { id: again[0].id, token: again[0].token, verdict: AttemptResult::Done(None) };
    tasks.settle(&[done]).await.unwrap();
    assert!(again[0].token > leased[0].token, "tokens rise although the clock was set back");
    // A scheduled task keeps its due time.
    let due = tasks.get(task(2).id).await.unwrap().unwrap().run_at;
    assert_eq!(due.as_micros(), before.now().as_micros() + 7_200_000_000);
    after.advance(due.since(after.now()));
    assert_eq!(numbers(&tasks.lease(&lease_request()).await.unwrap().tasks), [2]);
}

#[tokio::test]
async fn a_lease_keeps_its_expiry_across_a_restart_with_a_correct_clock() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("store.db");
    let store = open(&path, &clock, 1).await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task(1)]).await.unwrap();
    let leased = tasks.lease(&lease_request()).await.unwrap().tasks.remove(0);
    clock.advance(Duration::from_secs(29));
    let store = open(&path, &clock, 2).await;
    assert_eq!(store.tasks().unwrap().get(leased.id).await.unwrap().unwrap(), leased);
    clock.advance(Duration::from_secs(1));
    assert_eq!(store.tasks().unwrap().recover(10).await.unwrap().returned, 1);
}

/// The log is synced before a call returns, so a power cut leaves at least the files as they are at that time.
#[tokio::test]
async fn acknowledged_writes_are_in_the_files() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let store = open(&folder.path().join("store.db"), &clock, 1).await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task(1), task(2)]).await.unwrap();
    let leased = tasks.lease(&lease_request()).await.unwrap().tasks;
    let done = Settle { id: leased[0].id, token: leased[0].token, verdict: AttemptResult::Done(None) };
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

/// File of schema version 2: locks with inline events, and no tasks.
const SECOND_VERSION: &str = r#"
    PRAGMA application_id = 0x6c736864;
    PRAGMA user_version = 2;
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE locks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, record TEXT NOT NULL,
                        wake_at INTEGER, last_event INTEGER, tail TEXT NOT NULL DEFAULT '');
    CREATE INDEX locks_wake_at ON locks (wake_at) WHERE wake_at IS NOT NULL;
    CREATE TABLE events (seq INTEGER PRIMARY KEY, previous INTEGER, event TEXT NOT NULL);
    INSERT INTO meta VALUES ('boot', '00000000-0000-0000-0000-000000000001'), ('clock_offset', 0),
        ('token_floor', 0), ('token_ceiling', 1700000060000000);
    INSERT INTO locks VALUES
        (1, 'lock', '{"name":"lock","token":1699999999000000,"version":2}', NULL, NULL, '');
"#;

#[tokio::test]
async fn a_file_of_schema_version_2_keeps_its_locks_and_accepts_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch(SECOND_VERSION).unwrap();
    let clock = clock();
    let (one, two) = (open(&path, &clock, 1).await, open(&path, &clock, 1).await);
    let lock = leasehold::model::LockName::new("lock").unwrap();
    let record = one.locks().get(&lock).await.unwrap().unwrap();
    assert_eq!((record.version, record.token.get()), (2, 1_699_999_999_000_000));
    let shop = Shop::from(leasehold::testing::Fixture::new(one, two, clock, folder));
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.done(&leased).await;
    let new = tempfile::tempdir().unwrap();
    drop(open(&new.path().join("store.db"), &shop.f.clock, 1).await);
    assert_eq!(version(&path), version(&new.path().join("store.db")));
}

fn version(path: &Path) -> i64 {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}
