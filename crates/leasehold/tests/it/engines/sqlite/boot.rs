//! One boot of the machine with several boot ids, as containers of one kernel show them, and restarts that are proved.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{BootId, LockName, Timestamp, Ttl};
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::store::{Boot, Clock, EventRange, ListEvents, ListLocks, Store};
use leasehold::testing::Player;
use uuid::Uuid;

use crate::engines::support::clock;

const HOUR: u64 = 3_600_000_000;

/// A process that sees the boot id `id`, a hundred hours after the start of the machine.
fn boot(id: Option<u128>) -> Boot {
    let wall = Timestamp::from_micros(1_700_000_000_000_000);
    Boot { id: id.map(|id| BootId(Uuid::from_u128(id))), clock: 100 * HOUR, wall, is_certain: true }
}

/// The wall clock was set ahead, or the machine was off for as long.
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

fn player(store: &Arc<SqliteStore>, number: u128) -> Player {
    Player::new(store.clone(), number, LockName::new("lock").unwrap())
}

/// For tests that go by the real clock, however slow the machine is.
fn patient_player(store: &Arc<SqliteStore>, number: u128) -> Player {
    let mut player = player(store, number);
    player.ask.ttl = Ttl::from_secs(3600);
    player
}

#[tokio::test]
async fn other_boot_ids_of_one_boot_free_nothing_and_extend_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let host = open(&path, Some(&clock), boot(Some(1))).await;
    let container = open(&path, Some(&clock), boot(Some(2))).await;
    let hidden = open(&path, Some(&clock), boot(None)).await;
    player(&host, 1).of_boot(1).takes().await;
    let record = player(&host, 1).record().await;
    for turn in 0..5 {
        for id in [Some(3 + turn), None, Some(1), Some(2)] {
            let store = open(&path, Some(&clock), boot(id)).await;
            player(&store, 9).is_refused().await;
        }
        for store in [&host, &container, &hidden] {
            player(store, 9).is_refused().await;
            store.locks().sweep(10).await.unwrap();
        }
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(player(&host, 1).record().await, record, "as it was, with the end that it had");
    clock.advance(Duration::from_secs(5));
    player(&hidden, 9).takes().await;
}

#[tokio::test]
async fn a_wall_clock_that_is_set_frees_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let host = open(&path, Some(&clock), boot(Some(1))).await;
    player(&host, 1).of_boot(1).takes().await;
    for (id, wall) in [(1, 900), (2, 50), (3, 900), (3, 900)] {
        let store = open(&path, Some(&clock), hours_later(boot(Some(id)), 1, wall)).await;
        player(&store, 9).is_refused().await;
    }
}

/// The boot clock is beyond what it was: only the wall clock and the closed file tell that it is another boot.
#[tokio::test]
async fn a_machine_that_is_up_for_longer_than_before_frees_once_nobody_has_the_file_open() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let before = open(&path, Some(&clock), boot(Some(1))).await;
    let lease = player(&before, 1).of_boot(1).takes().await;
    let after = hours_later(boot(Some(2)), 1, 200);
    // A process that only looks does not count.
    let looks = open(&path, Some(&clock), boot(Some(1))).await;
    player(&looks, 1).record().await;
    player(&open(&path, Some(&clock), after).await, 9).is_refused().await;
    drop(before);
    // A store that is dropped closes its file in the background.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let taken = loop {
        match player(&open(&path, Some(&clock), after).await, 9).asks().await {
            leasehold::model::Outcome::Granted(taken) => break taken,
            other => assert!(std::time::Instant::now() < end, "{other:?}"),
        }
    };
    assert!(taken.token > lease.token);
}

#[tokio::test]
async fn a_process_that_only_looks_changes_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let writer = open(&path, Some(&clock), boot(Some(1))).await;
    player(&writer, 1).of_boot(1).takes().await;
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
            let ask = ListEvents { lock, span, ..ListEvents::default() };
            assert_eq!(store.locks().history(&ask).await.unwrap().items.len(), 1);
        }
        store.check_health().await.unwrap();
        store.locks().now().await.unwrap();
        store.tasks().unwrap().queues().await.unwrap();
        drop(store);
        assert!(files() == before, "{now:?}");
    }
}

/// Also after the wall clock was set.
#[tokio::test]
async fn all_processes_of_a_boot_go_by_the_same_clock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let here = Boot::read();
    let first = open(&path, None, here).await;
    patient_player(&first, 1).takes().await;
    let other = Some(BootId(Uuid::from_u128(2)));
    let set = hours_later(here, 0, 1);
    for now in [here, Boot { id: other, ..here }, Boot { id: None, ..here }, set, Boot { id: other, ..set }] {
        let store = open(&path, None, now).await;
        for _ in 0..2 {
            let (one, two) = (first.locks().now().await.unwrap(), store.locks().now().await.unwrap());
            assert!(two >= one && two.since(one) < Duration::from_secs(30), "{one} and {two}: {now:?}");
            patient_player(&store, 2).is_refused().await;
        }
    }
}

#[tokio::test]
async fn after_a_restart_time_never_falls_behind_and_all_go_by_the_new_clock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let here = Boot::read();
    let store = open(&path, None, here).await;
    patient_player(&store, 1).of_boot(1).takes().await;
    drop(store);
    // As if the file had been written by a boot that was up for two hours more, and whose clock was as far ahead.
    let conn = rusqlite::Connection::open(&path).unwrap();
    let moved =
        conn.execute("UPDATE meta SET value = value + 7200000000 WHERE key = 'boottime'", []).unwrap();
    assert_eq!(moved, 1);
    drop(conn);
    let newest = here.wall.as_micros() + 2 * HOUR;
    let looks = open(&path, None, Boot::read()).await;
    assert!(looks.locks().now().await.unwrap().as_micros() >= newest);
    let one = open(&path, None, Boot::read()).await;
    patient_player(&one, 2).takes().await;
    let two = open(&path, None, Boot { id: None, ..Boot::read() }).await;
    patient_player(&two, 3).is_refused().await;
    for store in [&one, &two, &looks] {
        let now = store.locks().now().await.unwrap();
        assert!(now.as_micros() >= newest && now.as_micros() < newest + HOUR, "{now}");
    }
}

/// The wall clock is another one, and the boot clock proves nothing. Where no lease depends on the clock it can be set.
#[tokio::test]
async fn a_file_that_was_moved_to_another_machine_gets_its_clock_once_it_has_no_lease() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let offset = || -> i64 {
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.query_row("SELECT value FROM meta WHERE key = 'clock_offset'", [], |row| row.get(0)).unwrap()
    };
    let one = open(&path, Some(&clock), boot(Some(1))).await;
    let lease = player(&one, 1).takes().await;
    drop(one);
    let before = offset();
    let two = open(&path, Some(&clock), hours_later(boot(Some(2)), 1, 11)).await;
    player(&two, 9).is_refused().await;
    player(&two, 1).releases(&lease).await;
    drop(two);
    assert_eq!(offset(), before);
    // The second machine is known by now, and a third one is not.
    let elsewhere = hours_later(boot(Some(3)), 1, 21);
    let three = open(&path, Some(&clock), elsewhere).await;
    assert!(player(&three, 9).takes().await.token > lease.token);
    drop(three);
    assert_eq!(u64::try_from(offset()).unwrap(), elsewhere.wall.as_micros() - elsewhere.clock);
}

/// Containers that start together after a restart: the first of them frees, and none of them loses what it has taken.
#[tokio::test(flavor = "multi_thread")]
async fn many_may_start_at_once_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let here = Boot::read();
    let before = open(&path, None, here).await;
    for number in 0..20 {
        let name = LockName::new(format!("lock-{number}")).unwrap();
        Player::new(before.clone(), number + 1, name).of_boot(1).takes().await;
    }
    drop(before);
    for (key, value) in [("boottime", 7_200_000_000_i64), ("clock_offset", -7_200_000_000)] {
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.execute("UPDATE meta SET value = value + ?2 WHERE key = ?1", (key, value)).unwrap();
    }
    let now = Boot::read();
    let starts: Vec<_> = (0..20_u128)
        .map(|number| {
            let path = path.clone();
            tokio::spawn(async move {
                let id = Some(BootId(Uuid::from_u128(100 + number)));
                let store = open(&path, None, Boot { id, ..now }).await;
                let name = LockName::new(format!("lock-{number}")).unwrap();
                let player = Player::new(store, 100 + number, name).of_boot(100 + number);
                let lease = player.takes().await;
                (player, lease)
            })
        })
        .collect();
    for start in starts {
        let (player, lease) = start.await.unwrap();
        assert_eq!(player.record().await.holders[0].token, lease.token);
    }
}

/// A file of before has one boot id and no stamp. Its newest event tells how long the machine had been up.
#[tokio::test]
async fn a_file_of_the_third_version_tells_containers_from_restarts() {
    let (host, clock) = (boot(Some(1)), clock());
    let up = i64::try_from(host.clock).unwrap();
    let wall = i64::try_from(host.wall.as_micros()).unwrap();
    let container = boot(Some(2));
    let restarted = Boot { clock: HOUR, ..hours_later(boot(Some(3)), 0, 1) };
    for (now, ids, is_restarted) in [(host, 1, false), (container, 2, false), (restarted, 1, true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.execute_batch(include_str!("version_3.sql")).unwrap();
        conn.execute("UPDATE meta SET value = ? WHERE key = 'clock_offset'", [wall - up]).unwrap();
        conn.execute("INSERT INTO events VALUES (?, NULL, '{}')", [wall * 1024]).unwrap();
        drop(conn);
        let store = open(&path, Some(&clock), now).await;
        player(&store, 1).takes().await;
        drop(store);
        let conn = rusqlite::Connection::open(&path).unwrap();
        let meta = |key: &str| -> String {
            let sql = "SELECT CAST(value AS TEXT) FROM meta WHERE key = ?";
            conn.query_row(sql, [key], |row| row.get(0)).unwrap()
        };
        assert_eq!(meta("boot_ids").split(' ').count(), ids, "{now:?}");
        assert_eq!(meta("boottime"), now.clock.to_string(), "{now:?}");
        assert_eq!(meta("clock_offset") != (wall - up).to_string(), is_restarted, "{now:?}");
        assert_eq!(meta("token_floor") != "0", is_restarted, "{now:?}");
    }
}
