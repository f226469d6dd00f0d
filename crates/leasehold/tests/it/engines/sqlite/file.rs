//! Database file: its permissions, its schema, and other programs that write to it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{Cursor, ListEvents, Store};
use leasehold::testing::{Player, shop};
use leasehold::{Error, Leasehold};
use rusqlite::Connection;

/// Opens a file that must be rejected and left unchanged.
async fn rejected(path: &Path) -> Error {
    let before = fs::read(path).unwrap();
    let error = SqliteStore::open(SqliteOptions::new(path)).await.unwrap_err();
    assert!(fs::read(path).unwrap() == before, "a rejected file must not be changed");
    error
}

#[tokio::test]
async fn all_files_are_private_to_the_owner() {
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
async fn a_file_that_is_not_a_database_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "dear diary, ".repeat(1000)).unwrap();
    let error = rejected(&path).await;
    assert!(error.to_string().ends_with("notes.txt is not a database"), "{error}");
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
}

#[tokio::test]
async fn a_database_of_another_program_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("music.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE songs (name)").unwrap();
    let error = rejected(&path).await;
    assert!(error.to_string().ends_with("music.db is a database of another program"), "{error}");
}

#[tokio::test]
async fn a_newer_schema_is_rejected() {
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
async fn a_writer_that_never_ends_is_reported_as_busy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let mut options = SqliteOptions::new(&path);
    options.busy_timeout = Duration::from_millis(50);
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

/// Processes that open the path now get another file: continuing with the old one would allow two holders. The next
/// write detects it, and the error is final even if the file reappears.
#[tokio::test]
async fn a_file_that_was_removed_moved_or_replaced_is_no_longer_used() {
    let ways: [fn(&Path); 5] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::rename(path, path.with_extension("away")).unwrap(),
        |path| {
            fs::copy(path, path.with_extension("copy")).unwrap();
            fs::rename(path.with_extension("copy"), path).unwrap();
        },
        |path| fs::rename(path.parent().unwrap(), path.parent().unwrap().with_extension("away")).unwrap(),
        |path| {
            fs::rename(path, path.with_extension("away")).unwrap();
            std::os::unix::fs::symlink(path.with_extension("away"), path).unwrap();
        },
    ];
    for (number, way) in ways.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store/locks.db");
        let store = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
        let player = Player::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
        let lease = player.takes().await;
        way(&path);
        let op = leasehold::model::LockOp::Renew(leasehold::model::Renew {
            lease_id: lease.ask.lease_id,
            token: lease.token,
            ttl: None,
        });
        let is_broken = async || {
            let error = player.store.locks().apply(&player.lock, &op).await.unwrap_err();
            assert!(
                error.to_string().ends_with("was removed, moved or replaced while it was open"),
                "{error}"
            );
            assert_eq!(error.code(), "STORE_BROKEN", "way {number}");
            assert!(!error.is_retryable());
        };
        is_broken().await;
        assert!(player.store.locks().get(&player.lock).await.is_err(), "reads fail, too");
        if number == 1 {
            fs::rename(path.with_extension("away"), &path).unwrap();
            is_broken().await;
        }
    }
}

#[tokio::test]
async fn a_removed_log_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    for suffix in ["-wal", "-shm"] {
        let path = folder.path().join(format!("locks{suffix}.db"));
        let store = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
        let player = Player::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
        player.takes().await;
        fs::remove_file(folder.path().join(format!("locks{suffix}.db{suffix}"))).unwrap();
        // Side files are checked at most once per millisecond.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let op = leasehold::model::LockOp::Sweep(leasehold::model::Sweep::default());
        let error = player.store.locks().apply(&player.lock, &op).await.unwrap_err();
        assert_eq!(error.code(), "STORE_BROKEN");
    }
}

/// Under another name the log would not be found. A holder that has the file open is not affected by a link that no
/// process can use.
#[tokio::test]
async fn a_file_with_a_hard_link_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("locks.db"), folder.path().join("link.db"));
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    let player = Player::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
    let lease = player.takes().await;
    fs::hard_link(&path, &link).unwrap();
    for name in [&path, &link] {
        let error = rejected(name).await;
        assert!(error.to_string().contains("has 2 hard links"), "{error}");
        assert_eq!(error.code(), "STORE_MISCONFIGURED");
    }
    player.releases(&lease).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_processes_may_open_a_new_file_at_once() {
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

/// File of schema version 1: a row for each event, and no inline events.
const FIRST_VERSION: &str = r#"
    PRAGMA application_id = 0x6c736864;
    PRAGMA user_version = 1;
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE locks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, record TEXT NOT NULL,
                        wake_at INTEGER, last_event INTEGER);
    CREATE INDEX locks_wake_at ON locks (wake_at) WHERE wake_at IS NOT NULL;
    CREATE TABLE events (seq INTEGER PRIMARY KEY, previous INTEGER, event TEXT NOT NULL);
    INSERT INTO meta VALUES ('boot', '00000000-0000-0000-0000-000000000001'), ('clock_offset', 0),
        ('token_floor', 0), ('token_ceiling', 1700000060000000);
    INSERT INTO events VALUES
        (1, NULL, '{"at":1699999999000000,"lock":"lock","kind":"acquired","token":1699999999000000,
            "lease_id":"00000000-0000-0000-0000-000000000009","holder":"ada","mode":"exclusive","slots":1}'),
        (2, 1, '{"at":1699999999500000,"lock":"lock","kind":"released","token":1699999999000000,
            "lease_id":"00000000-0000-0000-0000-000000000009","holder":"ada","mode":"exclusive","slots":1,
            "after_micros":500000}');
    INSERT INTO locks VALUES
        (1, 'lock', '{"name":"lock","token":1699999999000000,"version":2}', 1700000009000000, 2);
"#;

/// File of schema version 3: it does not record whether a task has started.
const THIRD_VERSION: &str = include_str!("version_3.sql");

#[tokio::test]
async fn running_tasks_of_schema_version_3_count_as_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    Connection::open(&path).unwrap().execute_batch(THIRD_VERSION).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let clock = crate::engines::support::clock();
    let store = super::suite::open(&path, &clock, 1).await;
    let tasks = store.tasks().unwrap();
    let get = async |number| tasks.get(shop::task(number).id).await.unwrap().unwrap();
    let (running, waiting) = (get(1).await, get(2).await);
    assert_eq!((running.begun, running.expiries, running.attempt), (true, 0, 1));
    assert_eq!((waiting.begun, waiting.expiries, waiting.may_be_fetched_ahead()), (false, 0, true));
    clock.advance(Duration::from_mins(1));
    assert_eq!(tasks.recover(10).await.unwrap().returned, 1);
    let returned = get(1).await;
    assert_eq!((returned.begun, returned.expiries, returned.attempt), (false, 1, 1));
}

#[tokio::test]
async fn a_file_of_schema_version_1_is_migrated_with_its_locks_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    Connection::open(&path).unwrap().execute_batch(FIRST_VERSION).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let clock = crate::engines::support::clock();
    let store = super::suite::open(&path, &clock, 1).await;
    let player = Player::new(store.clone(), 1, LockName::new("lock").unwrap());
    assert_eq!(player.record().await.version, 2);
    let lease = player.takes().await;
    assert!(lease.token.get() > 1_699_999_999_000_000);
    player.releases(&lease).await;
    for lock in [None, Some(player.lock.clone())] {
        let page = store.locks().history(&ListEvents { lock, ..ListEvents::default() }).await.unwrap();
        let events: Vec<_> =
            page.items.iter().map(|event| (event.holder.as_str(), event.kind.to_string())).collect();
        let events: Vec<_> = events.iter().map(|(holder, kind)| (*holder, kind.as_str())).collect();
        let expected =
            [("player-1", "released"), ("player-1", "acquired"), ("ada", "released"), ("ada", "acquired")];
        assert_eq!(events, expected);
    }
}

/// The newest events are in the rows of their locks. A reader of the whole history sees each event once, in order.
#[tokio::test]
async fn following_the_history_of_all_locks_misses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let mut stores = Vec::new();
    for _ in 0..2 {
        stores.push(std::sync::Arc::new(SqliteStore::open(SqliteOptions::new(&path)).await.unwrap()));
    }
    let mut follow =
        ListEvents { span: leasehold::store::EventRange::After(Cursor::start()), ..ListEvents::default() };
    let (mut expected, mut seen) = (Vec::new(), Vec::new());
    for turn in 0..300_usize {
        let (store, name) = (stores[turn % 2].clone(), format!("lock-{}", turn % 7));
        let player = Player::new(store, turn as u128 + 1, LockName::new(name).unwrap()).of_boot(1);
        let lease = player.takes().await;
        player.releases(&lease).await;
        expected.extend([lease.token; 2]);
        if turn % 5 == 0 {
            let page = stores[0].locks().history(&follow).await.unwrap();
            seen.extend(page.items.iter().map(|event| event.token));
            follow.span = leasehold::store::EventRange::After(page.next.unwrap());
        }
    }
    let page = stores[1].locks().history(&follow).await.unwrap();
    seen.extend(page.items.iter().map(|event| event.token));
    assert_eq!(seen, expected);
}
