//! Several connections that write to one file: what waits for another writer, and the size of the log.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{LockName, Ttl};
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{ListEvents, Store};
use leasehold::testing::TestClient;
use rusqlite::Connection;

/// Size above which the log is emptied.
const MAX_LOG: u64 = 1 << 20;

async fn open(path: &Path) -> Arc<SqliteStore> {
    let mut options = SqliteOptions::new(path);
    options.busy_timeout = Duration::from_mins(1);
    options.max_log = MAX_LOG;
    Arc::new(SqliteStore::open(options).await.unwrap())
}

/// Returns a client whose lease takes several pages.
fn client(store: &Arc<SqliteStore>, number: u128) -> TestClient {
    let name = LockName::new(format!("lock-{number}")).unwrap();
    TestClient::new(store.clone(), number, name).of_boot(1).meta("key", &"x".repeat(4000))
}

async fn acquire_and_release(client: &TestClient) {
    let lease = client.acquire().await;
    client.release(&lease).await;
}

fn log_size(path: &Path) -> u64 {
    fs::metadata(path.with_extension("db-wal")).unwrap().len()
}

/// Writes until the log is short.
async fn write_until_short(client: &TestClient, path: &Path) {
    let end = Instant::now() + Duration::from_mins(1);
    while log_size(path) > MAX_LOG {
        assert!(Instant::now() < end, "the log has {} bytes", log_size(path));
        acquire_and_release(client).await;
    }
}

/// The other work ends the transaction for which the calls wait: they would fail if they waited on its thread.
#[tokio::test]
async fn maintenance_waits_for_another_writer_without_the_thread_of_its_caller() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let store = open(&path).await;
    client(&store, 1).acquire().await;
    let other = Connection::open(&path).unwrap();
    other.busy_timeout(Duration::from_mins(1)).unwrap();
    let (locks, newest) = (store.locks(), ListEvents::default());
    for call in ["history", "sweep", "forget", "check"] {
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let waits = async {
            match call {
                "history" => locks.history(&newest).await.map(drop),
                "sweep" => locks.sweep(10).await.map(drop),
                "forget" => locks.forget(Ttl::from_secs(60), 10).await.map(drop),
                _ => store.check_health().await.map(drop),
            }
        };
        let other_work = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            other.execute_batch("ROLLBACK").unwrap();
        };
        let (done, ()) = tokio::join!(waits, other_work);
        done.unwrap_or_else(|error| panic!("{call}: {error}"));
    }
    // All events are in their table by now: a read needs no write lock.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(locks.history(&newest).await.unwrap().items.len(), 1);
}

/// Checkpoints that do not stop the other writers never end while these write, so the log would grow all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_log_stays_short_while_several_processes_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let mut writers = Vec::new();
    for number in 1..=3 {
        let (store, path) = (open(&path).await, path.clone());
        writers.push(tokio::spawn(async move {
            let (client, mut largest) = (client(&store, number), 0_u64);
            for _ in 0..400 {
                acquire_and_release(&client).await;
                largest = largest.max(log_size(&path));
            }
            largest
        }));
    }
    for writer in writers {
        let largest = writer.await.unwrap();
        assert!(largest < 10 * MAX_LOG, "the log had {largest} bytes");
    }
    write_until_short(&client(&open(&path).await, 4), &path).await;
}

#[tokio::test]
async fn a_log_that_a_reader_has_kept_becomes_short_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let store = open(&path).await;
    let client = client(&store, 1);
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM leasehold_meta").unwrap();
    while log_size(&path) <= 2 * MAX_LOG {
        acquire_and_release(&client).await;
    }
    reader.execute_batch("COMMIT").unwrap();
    write_until_short(&client, &path).await;
}
