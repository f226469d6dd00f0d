//! Database file: its permissions, its schema, and other programs that write to it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{Cursor, EventRange, ListEvents, Store};
use leasehold::testing::TestClient;
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
    let client = TestClient::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
    let op = leasehold::model::LockOp::Sweep(leasehold::model::Sweep::default());
    let error = client.store.locks().apply(&client.lock, &op).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.is_retryable());
    blocker.execute_batch("ROLLBACK").unwrap();
    client.acquire().await;
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
        let client = TestClient::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
        let lease = client.acquire().await;
        way(&path);
        let op = leasehold::model::LockOp::Renew(leasehold::model::Renew {
            lease_id: lease.request.lease_id,
            token: lease.token,
            ttl: None,
        });
        let is_broken = async || {
            let error = client.store.locks().apply(&client.lock, &op).await.unwrap_err();
            assert!(
                error.to_string().ends_with("was removed, moved or replaced while it was open"),
                "{error}"
            );
            assert_eq!(error.code(), "STORE_BROKEN", "way {number}");
            assert!(!error.is_retryable());
        };
        is_broken().await;
        assert!(client.store.locks().get(&client.lock).await.is_err(), "reads fail, too");
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
        let client = TestClient::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
        client.acquire().await;
        fs::remove_file(folder.path().join(format!("locks{suffix}.db{suffix}"))).unwrap();
        // Side files are checked at most once per millisecond.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let op = leasehold::model::LockOp::Sweep(leasehold::model::Sweep::default());
        let error = client.store.locks().apply(&client.lock, &op).await.unwrap_err();
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
    let client = TestClient::new(std::sync::Arc::new(store), 1, LockName::new("lock").unwrap());
    let lease = client.acquire().await;
    fs::hard_link(&path, &link).unwrap();
    for name in [&path, &link] {
        let error = rejected(name).await;
        assert!(error.to_string().contains("has 2 hard links"), "{error}");
        assert_eq!(error.code(), "STORE_MISCONFIGURED");
    }
    client.release(&lease).await;
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

/// The first call that needs the writer thread fails if the thread cannot be started, and the next call tries again.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_thread_that_could_not_be_started_is_started_by_the_next_call() {
    use leasehold::testing::task_fixture::task;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// Environment variable with the file; set only for the process without memory for a thread.
    const FILE: &str = "LEASEHOLD_TEST_FILE";

    let Some(path) = std::env::var_os(FILE) else {
        let folder = tempfile::tempdir().unwrap();
        let name = "a_thread_that_could_not_be_started_is_started_by_the_next_call";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--test-threads", "1", &format!("engines::sqlite::file::{name}")])
            .env(FILE, folder.path().join("store.db"))
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
        return;
    };
    let store = SqliteStore::open(SqliteOptions::new(path)).await.unwrap();
    let tasks = store.tasks().unwrap();
    // A batch of this size is always added by the writer thread.
    let new: Vec<_> = (1..=10).map(task).collect();
    let before = getrlimit(Resource::As);
    let limit_memory = |current| setrlimit(Resource::As, Rlimit { current, ..before }).unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    // One MiB is enough for the call, but not for the stack of a thread.
    limit_memory(Some((size + 1024) << 10));
    let failed = tasks.enqueue(&new).await;
    limit_memory(before.current);
    let error = failed.unwrap_err();
    assert!(error.to_string().ends_with("the store's thread cannot be started"), "{error}");
    assert!(error.is_retryable());
    assert_eq!(tasks.enqueue(&new).await.unwrap().len(), new.len());
    assert_eq!(tasks.queues().await.unwrap()[0].counts.open(), 10);
}

#[tokio::test]
async fn history_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = SqliteOptions::new(folder.path().join("locks.db"));
    options.max_events = 100;
    let store = std::sync::Arc::new(SqliteStore::open(options).await.unwrap());
    let client = TestClient::new(store.clone(), 1, LockName::new("lock").unwrap()).of_boot(1);
    for _ in 0..1100 {
        let lease = client.acquire().await;
        client.release(&lease).await;
    }
    store.locks().sweep(10).await.unwrap();
    let page = store.locks().history(&ListEvents::default().limit(1000)).await.unwrap();
    assert_eq!(page.items.len(), 100);
    let of_lock = ListEvents::default().lock(client.lock.clone()).limit(1000);
    assert_eq!(store.locks().history(&of_lock).await.unwrap().items, page.items);
}

/// One pruning deletes a limited number of events; a sweep repeats it.
#[tokio::test]
async fn a_sweep_prunes_a_history_that_has_grown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let mut options = SqliteOptions::new(&path);
    options.max_events = 100;
    let store = std::sync::Arc::new(SqliteStore::open(options.clone()).await.unwrap());
    let client = TestClient::new(store.clone(), 1, LockName::new("lock").unwrap()).of_boot(1);
    client.acquire().await;
    store.locks().sweep(10).await.unwrap();
    let conn = Connection::open(&path).unwrap();
    let insert = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 40000)
        INSERT INTO leasehold_events (seq, event) SELECT n, (SELECT event FROM leasehold_events LIMIT 1) FROM n";
    conn.execute(insert, []).unwrap();
    // A process prunes with its first sweep, and then once a minute.
    SqliteStore::open(options).await.unwrap().locks().sweep(10).await.unwrap();
    let count: u32 = conn.query_row("SELECT count(*) FROM leasehold_events", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 100);
}

/// The newest events are in the rows of their locks, and move to the table of all events in several transactions.
#[tokio::test]
async fn the_history_is_complete_although_the_events_of_many_locks_move() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("locks.db"));
    let store = std::sync::Arc::new(SqliteStore::open(options).await.unwrap());
    let acquire = async |numbers: std::ops::Range<u128>| {
        for number in numbers {
            let name = LockName::new(format!("lock-{number}")).unwrap();
            TestClient::new(store.clone(), number, name).of_boot(1).acquire_for(3600).await;
        }
    };
    acquire(1..1101).await;
    let newest = store.locks().history(&ListEvents::default().limit(1)).await.unwrap().items;
    assert_eq!(newest[0].lock.as_str(), "lock-1100");
    acquire(1101..2201).await;
    store.locks().sweep(10).await.unwrap();
    let newest = store.locks().history(&ListEvents::default().limit(1)).await.unwrap().items;
    assert_eq!(newest[0].lock.as_str(), "lock-2200");
}

/// A process that only reads finds the newest events in the rows of their locks, beside any writer.
#[tokio::test]
async fn reading_the_history_of_all_locks_waits_for_no_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let writer = std::sync::Arc::new(SqliteStore::open(SqliteOptions::new(&path)).await.unwrap());
    let mut options = SqliteOptions::new(&path);
    options.busy_timeout = Duration::from_millis(50);
    let reader = SqliteStore::open(options).await.unwrap();
    for number in 0..60_u128 {
        let name = LockName::new(format!("lock-{}", number % 3)).unwrap();
        let client = TestClient::new(writer.clone(), number + 1, name).of_boot(1);
        let lease = client.acquire().await;
        client.release(&lease).await;
    }
    let blocker = Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut newest = reader.locks().history(&ListEvents::default().limit(1000)).await.unwrap().items;
    newest.reverse();
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    let mut follow = ListEvents::default().span(EventRange::After(Cursor::start())).limit(7);
    let mut back = ListEvents::default().limit(7);
    while forward.len() < newest.len() {
        let page = reader.locks().history(&follow).await.unwrap();
        assert!(!page.items.is_empty());
        forward.extend(page.items);
        follow.span = EventRange::After(page.next.unwrap());
        let page = reader.locks().history(&back).await.unwrap();
        backward.extend(page.items);
        back.span = page.next.map_or(EventRange::Newest, EventRange::Before);
    }
    backward.truncate(newest.len());
    backward.reverse();
    blocker.execute_batch("ROLLBACK").unwrap();
    let all = ListEvents::default().span(EventRange::After(Cursor::start())).limit(1000);
    let all = writer.locks().history(&all).await.unwrap().items;
    assert_eq!(all.len(), 120);
    assert!(newest == all && forward == all && backward == all, "{newest:?}");
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
    let mut follow = ListEvents::default().span(EventRange::After(Cursor::start()));
    let (mut expected, mut seen) = (Vec::new(), Vec::new());
    for turn in 0..300_usize {
        let (store, name) = (stores[turn % 2].clone(), format!("lock-{}", turn % 7));
        let client = TestClient::new(store, turn as u128 + 1, LockName::new(name).unwrap()).of_boot(1);
        let lease = client.acquire().await;
        client.release(&lease).await;
        expected.extend([lease.token; 2]);
        if turn % 5 == 0 {
            let page = stores[0].locks().history(&follow).await.unwrap();
            seen.extend(page.items.iter().map(|event| event.token));
            follow.span = EventRange::After(page.next.unwrap());
        }
    }
    let page = stores[1].locks().history(&follow).await.unwrap();
    seen.extend(page.items.iter().map(|event| event.token));
    assert_eq!(seen, expected);
}
