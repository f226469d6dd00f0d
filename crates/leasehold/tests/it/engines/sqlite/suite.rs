//! Conformance suite, with two connections to one file.

use std::path::Path;
use std::sync::Arc;

use leasehold::model::{BootId, Timestamp};
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{Boot, Clock};
use leasehold::testing::{Fixture, agrees_with_the_rules};
use uuid::Uuid;

pub(super) async fn fresh() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("locks.db"), crate::engines::support::clock());
    // Two connections to one file, as two processes would have.
    let (one, two) = (open(&path, &clock, 1).await, open(&path, &clock, 1).await);
    Fixture::new(one, two, clock, folder)
}

/// Opens the file as if in boot number `boot` of this machine, whose uptime is an hour less than in the boot before.
pub(super) async fn open(path: &Path, clock: &Clock, boot: u128) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(options(path, clock, boot)).await.unwrap())
}

fn options(path: &Path, clock: &Clock, boot: u128) -> SqliteOptions {
    let mut options = SqliteOptions::new(path);
    options.clock = Some(clock.clone());
    let (number, hour) = (u64::try_from(boot).unwrap(), 3_600_000_000);
    options.boot = Some(Boot {
        id: Some(BootId(Uuid::from_u128(boot))),
        clock: (100 - number) * hour,
        wall: Timestamp::from_micros(1_700_000_000_000_000 + number * 1000 * hour),
        is_certain: true,
    });
    options
}

/// Like [`fresh`], with queues stored as rows from the second ticket on.
async fn fresh_with_rows() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("locks.db"), crate::engines::support::clock());
    let (one, two) = (open_with_rows(&path, &clock, 1).await, open_with_rows(&path, &clock, 1).await);
    Fixture::new(one, two, clock, folder)
}

async fn open_with_rows(path: &Path, clock: &Clock, long_queue: usize) -> Arc<SqliteStore> {
    let mut options = options(path, clock, 1);
    options.long_queue = long_queue;
    Arc::new(SqliteStore::open(options).await.unwrap())
}

mod locks {
    leasehold::lock_conformance!(crate::engines::sqlite::suite::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(64, fresh);
}

mod locks_with_rows {
    leasehold::lock_conformance!(crate::engines::sqlite::suite::fresh_with_rows);
}

#[test]
fn a_queue_of_rows_agrees_with_the_rules() {
    agrees_with_the_rules(64, fresh_with_rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_on_a_queue_agree_with_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("locks.db"), crate::engines::support::clock());
    let stores = [open_with_rows(&path, &clock, 2).await, open_with_rows(&path, &clock, 2).await];
    crate::engines::queue_differential::random_operations_agree(stores, &clock).await;
}
