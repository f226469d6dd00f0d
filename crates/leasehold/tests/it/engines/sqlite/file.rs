//! The file: whose it is, what is in it, who else writes to it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{ListEvents, Store};
use leasehold::testing::Player;
use leasehold::{Error, Leasehold};
use rusqlite::Connection;

async fn refused(path: &Path) -> Error {
    let before = fs::read(path).unwrap();
    let error = SqliteStore::open(SqliteOptions::new(path)).await.unwrap_err();
    assert!(fs::read(path).unwrap() == before, "a refused file must not be touched");
    error
}

#[tokio::test]
async fn all_its_files_are_the_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let leasehold = Leasehold::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    let _guard = leasehold.lock("lock").acquire().await.unwrap();
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "dear diary, ".repeat(1000)).unwrap();
    let error = refused(&path).await;
    assert!(error.to_string().ends_with("notes.txt is no database"), "{error}");
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
}

#[tokio::test]
async fn a_database_of_another_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("music.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE songs (name)").unwrap();
    let error = refused(&path).await;
    assert!(error.to_string().ends_with("music.db is a database of another program"), "{error}");
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    drop(SqliteStore::open(SqliteOptions::new(&path)).await.unwrap());
    let conn = Connection::open(&path).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    let error = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap_err();
    assert!(error.to_string().contains("has schema version 99, made by a newer leasehold"), "{error}");
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
}

#[tokio::test]
async fn a_writer_that_never_ends_is_told_as_busy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let mut options = SqliteOptions::new(&path);
    options.busy = Duration::from_millis(50);
    let store = SqliteStore::open(options).await.unwrap();
    let blocker = Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let player = Player::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
    let op = leasehold::model::LockOp::Sweep(leasehold::model::Sweep::default());
    let error = player.store.locks().apply(&player.lock, &op).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.is_retryable());
    blocker.execute_batch("ROLLBACK").unwrap();
    player.takes().await;
}

/// Whoever opens the path now gets another file: going on with the old one would be two holders.
#[tokio::test]
async fn a_file_that_was_removed_is_not_used_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    let player = Player::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
    player.takes().await;
    fs::remove_file(&path).unwrap();
    let op = leasehold::model::LockOp::Sweep(leasehold::model::Sweep::default());
    let error = player.store.locks().apply(&player.lock, &op).await.unwrap_err();
    assert!(error.to_string().ends_with("was removed or exchanged while it was open"), "{error}");
    assert_eq!(error.code(), "STORE_BROKEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_may_start_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = folder.path().join(format!("new-{round}/locks.db"));
        let openings: Vec<_> =
            (0..20).map(|_| tokio::spawn(SqliteStore::open(SqliteOptions::new(&path)))).collect();
        for opening in openings {
            opening.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn history_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = SqliteOptions::new(folder.path().join("locks.db"));
    options.max_events = 100;
    let store = std::sync::Arc::new(SqliteStore::open(options).await.unwrap());
    let player = Player::new(store.clone(), 1, LockName::new("lock").unwrap()).of_boot(1);
    for _ in 0..1100 {
        let lease = player.takes().await;
        player.releases(&lease).await;
    }
    store.locks().sweep(10).await.unwrap();
    let page = store.locks().history(&ListEvents { limit: 1000, ..ListEvents::default() }).await.unwrap();
    assert_eq!(page.items.len(), 100);
    let of_lock = ListEvents { lock: Some(player.lock.clone()), limit: 1000, ..ListEvents::default() };
    assert_eq!(store.locks().history(&of_lock).await.unwrap().items, page.items);
}
