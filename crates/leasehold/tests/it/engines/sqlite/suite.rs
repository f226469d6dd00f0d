//! The conformance suite, with two connections to one file.

use std::path::Path;
use std::sync::Arc;

use leasehold::model::BootId;
use leasehold::store::Clock;
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::testing::{Fixture, agrees_with_the_rules};
use uuid::Uuid;

pub(super) async fn fresh() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("locks.db"), crate::engines::support::clock());
    // Two connections to one file, as two processes would have.
    let (one, two) = (open(&path, &clock, 1).await, open(&path, &clock, 1).await);
    Fixture::new(one, two, clock, folder)
}

/// Opens the file as if in boot number `boot` of this machine.
pub(super) async fn open(path: &Path, clock: &Clock, boot: u128) -> Arc<SqliteStore> {
    let mut options = SqliteOptions::new(path);
    options.clock = Some(clock.clone());
    options.boot = Some(BootId(Uuid::from_u128(boot)));
    Arc::new(SqliteStore::open(options).await.unwrap())
}

mod locks {
    leasehold::lock_conformance!(crate::engines::sqlite::suite::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(64, fresh);
}
