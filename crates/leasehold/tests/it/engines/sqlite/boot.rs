//! Several boot ids within one boot, as seen by containers of one kernel, and proof of a restart.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{BootId, LockName, LockOp, NewTask, Sweep, Timestamp, Ttl};
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{Boot, Clock, EventRange, ListEvents, ListLocks, Store};
use leasehold::testing::TestClient;
use leasehold::testing::task_fixture::task;
use uuid::Uuid;

use super::restart::copy;
use crate::engines::support::clock;

const HOUR: u64 = 3_600_000_000;

/// Returns the boot of a process that sees the boot id `id`, a hundred hours after the start of the machine.
fn boot(id: Option<u128>) -> Boot {
    let wall = Timestamp::from_micros(1_700_000_000_000_000);
    Boot { id: id.map(|id| BootId(Uuid::from_u128(id))), clock: 100 * HOUR, wall, is_certain: true }
}

/// Advances the boot clock and the wall clock by different times: the wall clock was set, or the machine was off.
fn hours_later(boot: Boot, up: u64, wall: u64) -> Boot {
    let wall = Timestamp::from_micros(boot.wall.as_micros() + wall * HOUR);
    Boot { clock: boot.clock + up * HOUR, wall, ..boot }
}

async fn open(path: &Path, clock: Option<&Clock>, boot: Boot) -> Arc<SqliteStore> {
    let mut options = SqliteOptions::new(path);
    options.clock = clock.cloned();
    options.boot = Some(boot);
    Arc::new(SqliteStore::open(options).await.unwrap())
}

fn client(store: &Arc<SqliteStore>, number: u128) -> TestClient {
    TestClient::new(store.clone(), number, LockName::new("lock").unwrap())
}

/// Returns a client with a TTL of an hour, for tests with the real clock on a slow machine.
fn long_ttl_player(store: &Arc<SqliteStore>, number: u128) -> TestClient {
    let mut client = client(store, number);
    client.request.ttl = Ttl::from_secs(3600);
    client
}

/// Returns the stored offset of the engine's clock.
fn clock_offset(path: &Path) -> i64 {
    let conn = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT value FROM leasehold_meta WHERE key = 'clock_offset'";
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn other_boot_ids_of_one_boot_free_nothing_and_extend_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let host = open(&path, Some(&clock), boot(Some(1))).await;
    let container = open(&path, Some(&clock), boot(Some(2))).await;
    let hidden = open(&path, Some(&clock), boot(None)).await;
    client(&host, 1).of_boot(1).acquire().await;
    let record = client(&host, 1).record().await;
    for round in 0..5 {
        for id in [Some(3 + round), None, Some(1), Some(2)] {
            let store = open(&path, Some(&clock), boot(id)).await;
            client(&store, 9).expect_conflict().await;
        }
        for store in [&host, &container, &hidden] {
            client(store, 9).expect_conflict().await;
            store.locks().sweep(10).await.unwrap();
        }
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(client(&host, 1).record().await, record, "the record is unchanged, with the same expiry");
    clock.advance(Duration::from_secs(5));
    client(&hidden, 9).acquire().await;
}

#[tokio::test]
async fn a_wall_clock_that_is_set_frees_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let host = open(&path, Some(&clock), boot(Some(1))).await;
    client(&host, 1).of_boot(1).acquire().await;
    for (id, wall) in [(1, 900), (2, 50), (3, 900), (3, 900)] {
        let store = open(&path, Some(&clock), hours_later(boot(Some(id)), 1, wall)).await;
        client(&store, 9).expect_conflict().await;
    }
}

/// The boot clock is ahead of the stamp: only the wall clock and the absence of other processes prove a restart.
#[tokio::test]
async fn with_a_longer_uptime_than_before_leases_are_freed_once_no_process_has_the_file_open() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let before = open(&path, Some(&clock), boot(Some(1))).await;
    let lease = client(&before, 1).of_boot(1).acquire().await;
    let after = hours_later(boot(Some(2)), 1, 200);
    // A process that only reads does not count.
    let reader = open(&path, Some(&clock), boot(Some(1))).await;
    client(&reader, 1).record().await;
    client(&open(&path, Some(&clock), after).await, 9).expect_conflict().await;
    drop(before);
    // A store that is dropped closes its file in the background.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let taken = loop {
        match client(&open(&path, Some(&clock), after).await, 9).try_acquire().await {
            leasehold::model::Outcome::Granted(taken) => break taken,
            other => assert!(std::time::Instant::now() < end, "{other:?}"),
        }
    };
    assert!(taken.token > lease.token);
}

#[tokio::test]
async fn a_process_that_only_reads_changes_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let writer = open(&path, Some(&clock), boot(Some(1))).await;
    client(&writer, 1).of_boot(1).acquire().await;
    let files = || ["locks.db", "locks.db-wal"].map(|file| fs::read(folder.path().join(file)).unwrap());
    let before = files();
    let restarted = Boot { clock: HOUR, ..hours_later(boot(Some(7)), 0, 200) };
    for now in [boot(Some(1)), boot(Some(2)), boot(None), hours_later(boot(Some(3)), 1, 200), restarted] {
        let store = open(&path, Some(&clock), now).await;
        let name = LockName::new("lock").unwrap();
        assert_eq!(store.locks().get(&name).await.unwrap().unwrap().holders.len(), 1);
        assert_eq!(store.locks().list(&ListLocks::default()).await.unwrap().items.len(), 1);
        for (lock, span) in [
            (None, EventRange::Newest),
            (None, EventRange::After(leasehold::store::Cursor::start())),
            (Some(name), EventRange::Newest),
        ] {
            let query = ListEvents::default().lock(lock).span(span);
            assert_eq!(store.locks().history(&query).await.unwrap().items.len(), 1);
        }
        store.check_health().await.unwrap();
        store.locks().now().await.unwrap();
        store.tasks().unwrap().queues().await.unwrap();
        drop(store);
        assert!(files() == before, "{now:?}");
    }
}

/// Holds also after the wall clock was set.
#[tokio::test]
async fn all_processes_of_a_boot_use_the_same_clock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let here = Boot::read();
    let first = open(&path, None, here).await;
    long_ttl_player(&first, 1).acquire().await;
    let other = Some(BootId(Uuid::from_u128(2)));
    let set = hours_later(here, 0, 1);
    for now in [here, Boot { id: other, ..here }, Boot { id: None, ..here }, set, Boot { id: other, ..set }] {
        let store = open(&path, None, now).await;
        for _ in 0..2 {
            let (one, two) = (first.locks().now().await.unwrap(), store.locks().now().await.unwrap());
            assert!(two >= one && two.since(one) < Duration::from_secs(30), "{one} and {two}: {now:?}");
            long_ttl_player(&store, 2).expect_conflict().await;
        }
    }
}

#[tokio::test]
async fn after_a_restart_time_never_goes_back_and_all_processes_use_the_new_clock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let here = Boot::read();
    let store = open(&path, None, here).await;
    long_ttl_player(&store, 1).of_boot(1).acquire().await;
    drop(store);
    // As if the file had been written in a boot with two more hours of uptime and a clock that was as far ahead.
    let conn = rusqlite::Connection::open(&path).unwrap();
    let moved = conn
        .execute("UPDATE leasehold_meta SET value = value + 7200000000 WHERE key = 'boottime'", [])
        .unwrap();
    assert_eq!(moved, 1);
    drop(conn);
    let newest = here.wall.as_micros() + 2 * HOUR;
    let reader = open(&path, None, Boot::read()).await;
    assert!(reader.locks().now().await.unwrap().as_micros() >= newest);
    let one = open(&path, None, Boot::read()).await;
    long_ttl_player(&one, 2).acquire().await;
    let two = open(&path, None, Boot { id: None, ..Boot::read() }).await;
    long_ttl_player(&two, 3).expect_conflict().await;
    for store in [&one, &two, &reader] {
        let now = store.locks().now().await.unwrap();
        assert!(now.as_micros() >= newest && now.as_micros() < newest + HOUR, "{now}");
    }
}

/// The wall clock differs, and the boot clock proves nothing. The clock can be set if no lease depends on it.
#[tokio::test]
async fn a_file_moved_to_another_machine_adopts_its_clock_once_it_has_no_lease() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let offset = || clock_offset(&path);
    let one = open(&path, Some(&clock), boot(Some(1))).await;
    let lease = client(&one, 1).acquire().await;
    drop(one);
    let before = offset();
    let two = open(&path, Some(&clock), hours_later(boot(Some(2)), 1, 11)).await;
    client(&two, 9).expect_conflict().await;
    client(&two, 1).release(&lease).await;
    drop(two);
    assert_eq!(offset(), before);
    // The file knows the second machine by now, but not a third one.
    let third_machine = hours_later(boot(Some(3)), 1, 21);
    let three = open(&path, Some(&clock), third_machine).await;
    assert!(client(&three, 9).acquire().await.token > lease.token);
    drop(three);
    assert_eq!(u64::try_from(offset()).unwrap(), third_machine.wall.as_micros() - third_machine.clock);
}

/// A runner on another machine may still wait, and a clock that jumps would fail its task.
#[tokio::test]
async fn a_file_with_a_task_that_waits_for_its_runner_keeps_its_clock() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let one = open(&path, Some(&clock), boot(Some(1))).await;
    let waits = NewTask { runner_ttl: Some(Ttl::from_secs(30)), ..task(1) };
    one.tasks().unwrap().enqueue(&[waits]).await.unwrap();
    drop(one);
    let before = clock_offset(&path);
    let two = open(&path, Some(&clock), hours_later(boot(Some(2)), 1, 11)).await;
    client(&two, 1).acquire().await;
    drop(two);
    assert_eq!(clock_offset(&path), before);
}

/// Returns the error of a write, if it fails.
async fn refusal(store: &Arc<SqliteStore>) -> Option<leasehold::Error> {
    let lock = LockName::new("lock").unwrap();
    store.locks().apply(&lock, &LockOp::Sweep(Sweep::default())).await.err()
}

/// The first writer may be in another time namespace, and has no `/proc` to find out. Its clock is used as long as it
/// may be right.
#[tokio::test]
async fn the_clock_of_a_process_without_a_known_time_namespace_is_not_adopted_if_it_differs() {
    let uncertain = |boot: Boot| Boot { is_certain: false, ..boot };
    for (first, certain) in [
        (uncertain(boot(None)), hours_later(boot(Some(2)), 0, 2)),
        (uncertain(hours_later(boot(None), 0, 2)), boot(Some(2))),
    ] {
        let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
        let path = folder.path().join("locks.db");
        let one = open(&path, Some(&clock), first).await;
        let lease = client(&one, 1).acquire().await;
        let same_clock = Boot { id: Some(BootId(Uuid::from_u128(1))), ..first };
        assert!(refusal(&open(&path, Some(&clock), same_clock).await).await.is_none());
        let before = clock_offset(&path);
        let two = open(&path, Some(&clock), certain).await;
        let error = refusal(&two).await.unwrap();
        assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error}");
        assert_eq!(clock_offset(&path), before);
        client(&one, 1).release(&lease).await;
        drop(one);
        // A store that is dropped closes its file in the background.
        let end = std::time::Instant::now() + Duration::from_mins(1);
        while let Some(error) = refusal(&two).await {
            assert!(std::time::Instant::now() < end, "{error}");
            tokio::task::yield_now().await;
        }
        assert_eq!(u64::try_from(clock_offset(&path)).unwrap(), certain.wall.as_micros() - certain.clock);
        client(&two, 2).acquire().await;
    }
}

/// In a chroot there is no `/proc`, but the clocks are those of the machine.
#[tokio::test]
async fn a_process_without_a_known_time_namespace_may_write_first() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let chroot = Boot { is_certain: false, ..boot(None) };
    let one = open(&path, Some(&clock), chroot).await;
    client(&one, 1).acquire().await;
    let two = open(&path, Some(&clock), boot(Some(2))).await;
    client(&two, 2).expect_conflict().await;
    let three = open(&path, Some(&clock), chroot).await;
    client(&three, 3).expect_conflict().await;
}

/// A machine without a battery-backed clock may start with the same time as before, and be up for as long as before
/// when the file is written first. A power cut has lost the last writes.
#[tokio::test]
async fn no_token_is_issued_twice_after_a_power_cut_that_nothing_proves() {
    for id in [Some(2), None] {
        let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
        let before = open(&folder.path().join("locks.db"), Some(&clock), boot(Some(1))).await;
        let one = client(&before, 1).of_boot(1);
        let first = one.acquire().await;
        one.release(&first).await;
        let kept = copy(folder.path());
        let mut newest = first.token;
        for _ in 0..50 {
            let lease = one.acquire().await;
            newest = newest.max(lease.token);
            one.release(&lease).await;
        }
        let after = open(&kept.path().join("locks.db"), Some(&clock), boot(id)).await;
        assert!(client(&after, 2).acquire().await.token > newest, "{id:?}");
        let other_lock = TestClient::new(after, 3, LockName::new("other").unwrap());
        assert!(other_lock.acquire().await.token > newest, "{id:?}");
    }
}

/// Each start may be the first after a power cut, and each skips tokens. The clock stands still here.
#[tokio::test]
async fn tokens_stay_close_to_the_clock_however_often_containers_start() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let mut newest = 0;
    for number in 0..20 {
        for id in [Some(number), None] {
            let store = open(&path, Some(&clock), boot(id)).await;
            let client = client(&store, 1).of_boot(1);
            let lease = client.acquire().await;
            assert!(lease.token.get() > newest);
            newest = lease.token.get();
            client.release(&lease).await;
        }
    }
    let ahead = newest - clock.now().as_micros();
    assert!(ahead < 61_000_000, "{ahead} µs ahead of the clock");
}

/// Containers that start together after a restart: the first one frees the old leases, and none loses a new one.
#[tokio::test(flavor = "multi_thread")]
async fn many_processes_may_start_at_once_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let here = Boot::read();
    let before = open(&path, None, here).await;
    for number in 0..20 {
        let name = LockName::new(format!("lock-{number}")).unwrap();
        TestClient::new(before.clone(), number + 1, name).of_boot(1).acquire().await;
    }
    drop(before);
    for (key, value) in [("boottime", 7_200_000_000_i64), ("clock_offset", -7_200_000_000)] {
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.execute("UPDATE leasehold_meta SET value = value + ?2 WHERE key = ?1", (key, value)).unwrap();
    }
    let now = Boot::read();
    let starts: Vec<_> = (0..20_u128)
        .map(|number| {
            let path = path.clone();
            tokio::spawn(async move {
                let id = Some(BootId(Uuid::from_u128(100 + number)));
                let store = open(&path, None, Boot { id, ..now }).await;
                let name = LockName::new(format!("lock-{number}")).unwrap();
                let client = TestClient::new(store, 100 + number, name).of_boot(100 + number);
                let lease = client.acquire().await;
                (client, lease)
            })
        })
        .collect();
    for start in starts {
        let (client, lease) = start.await.unwrap();
        assert_eq!(client.record().await.holders[0].token, lease.token);
    }
}
