//! Proved restart of the machine, with or without a power cut before it. `boot.rs` has the cases without proof.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use leasehold::model::{LockName, LockOp, Outcome, Sweep, Token, Ttl};
use leasehold::store::{Clock, ListLocks, Store};
use leasehold::testing::TestClient;

use super::suite::open;
use crate::engines::support::clock;

async fn client(path: &Path, clock: &Clock, boot: u128, number: u128) -> TestClient {
    let store: Arc<dyn Store> = open(path, clock, boot).await;
    TestClient::new(store, number, LockName::new("lock").unwrap())
}

#[tokio::test]
async fn a_restart_frees_the_leases_of_this_machine() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let before = client(&path, &clock, 1, 1).await.of_boot(1).acquire().await;
    let same_boot = client(&path, &clock, 1, 2).await;
    same_boot.expect_conflict().await;
    let after = client(&path, &clock, 2, 3).await.acquire().await;
    assert!(after.token > before.token);
}

/// A restart ends all processes of a boot, also those that saw different boot ids.
#[tokio::test]
async fn a_restart_frees_the_leases_of_containers() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let store: Arc<dyn Store> = open(&path, &clock, 1).await;
    for (number, name) in [(1, "host"), (2, "container")] {
        let client = TestClient::new(store.clone(), number, LockName::new(name).unwrap());
        client.of_boot(40 + number).acquire().await;
    }
    let after: Arc<dyn Store> = open(&path, &clock, 2).await;
    for (number, name) in [(3, "host"), (4, "container")] {
        TestClient::new(after.clone(), number, LockName::new(name).unwrap()).acquire().await;
    }
}

#[tokio::test]
async fn a_restart_leaves_a_remote_holder_its_full_ttl() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let remote = client(&path, &clock, 1, 1).await;
    let lease = remote.acquire().await;
    // The clock may have jumped with the restart: no other client may acquire the lock before the holder can notice.
    clock.advance(std::time::Duration::from_hours(1));
    let after = client(&path, &clock, 2, 2).await;
    after.expect_conflict().await;
    let holder = client(&path, &clock, 2, 1).await;
    assert!(matches!(holder.renew(&lease).await, Outcome::Renewed(_)));
}

/// A machine may restart more often than a lock is retained for.
#[tokio::test]
async fn restarts_do_not_retain_a_released_lock_for_longer() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let one = client(&path, &clock, 1, 1).await.of_boot(1);
    let lease = one.acquire().await;
    one.release_with(lease.token, Some(Ttl::from_secs(20 * 3600))).await;
    clock.advance(std::time::Duration::from_hours(12));
    client(&path, &clock, 2, 2).await.expect_conflict().await;
    clock.advance(std::time::Duration::from_hours(12));
    client(&path, &clock, 3, 3).await.acquire().await;
}

/// A lock that cannot be read stays refused, and no other one.
#[tokio::test]
async fn a_lock_that_cannot_be_read_does_not_keep_the_store_from_starting() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let store: Arc<dyn Store> = open(&path, &clock, 1).await;
    for (number, name) in [(1, "bad"), (2, "good")] {
        let client = TestClient::new(store.clone(), number, LockName::new(name).unwrap());
        client.of_boot(1).acquire().await;
    }
    let conn = rusqlite::Connection::open(&path).unwrap();
    let sql = "UPDATE leasehold_locks SET record = 'not JSON' WHERE name = 'bad'";
    assert_eq!(conn.execute(sql, []).unwrap(), 1);
    let after: Arc<dyn Store> = open(&path, &clock, 2).await;
    TestClient::new(after.clone(), 3, LockName::new("good").unwrap()).acquire().await;
    let sweep = LockOp::Sweep(Sweep::default());
    after.locks().apply(&LockName::new("bad").unwrap(), &sweep).await.unwrap_err();
    after.locks().sweep(10).await.unwrap();
}

/// A power cut may lose all writes that were not synced. Grants to processes of this machine are not synced, and the
/// processes end with the machine; but other systems may have seen their tokens.
#[tokio::test]
async fn no_token_is_issued_twice_after_a_power_cut() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let one = client(&path, &clock, 1, 1).await.of_boot(1);
    let first = one.acquire().await;
    one.release(&first).await;
    let kept = copy(folder.path());
    // All of this is lost, but the tokens have been seen. The clock stands still and does not help.
    let mut newest = first.token;
    for _ in 0..50 {
        let lease = one.acquire().await;
        assert!(lease.token > newest);
        newest = lease.token;
        one.release(&lease).await;
    }
    let path = kept.path().join("locks.db");
    let after = client(&path, &clock, 2, 2).await;
    assert!(after.record().await.token >= newest, "an old token must not be taken for the newest");
    let listed = after.store.locks().list(&ListLocks::default()).await.unwrap().items;
    assert_eq!(listed, [after.record().await], "also in a list");
    assert!(after.acquire().await.token > newest);
    let other_lock = TestClient::new(after.store.clone(), 3, LockName::new("other").unwrap());
    assert!(other_lock.acquire().await.token > newest);
}

/// The first write after a restart gives the lock to the first waiter that is alive. It does not know that a waiter of
/// this machine has had the lock meanwhile.
#[tokio::test]
async fn a_waiter_that_gets_the_lock_by_a_restart_gets_a_new_token() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let one = client(&path, &clock, 1, 1).await.of_boot(1);
    let lock = |number| TestClient::new(one.store.clone(), number, one.lock.clone());
    let (two, remote) = (lock(2).of_boot(1), lock(3));
    let first = one.acquire().await;
    two.expect_queued().await;
    remote.expect_queued().await;
    let kept = copy(folder.path());
    // The hand-over is lost, but its token has been seen. The clock stands still and does not help.
    one.release(&first).await;
    let lost = two.acquire().await;
    let after = client(&kept.path().join("locks.db"), &clock, 2, 4).await;
    TestClient::new(after.store.clone(), 5, LockName::new("other").unwrap()).acquire().await;
    let holders = after.record().await.holders;
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].request.lease_id, remote.id());
    assert!(holders[0].token > lost.token, "{:?} after {:?}", holders[0].token, lost.token);
}

/// Without a restart nothing is lost: tokens continue without a gap.
#[tokio::test]
async fn opening_again_in_the_same_boot_changes_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let one = client(&path, &clock, 1, 1).await;
    let lease = one.acquire().await;
    let record = one.record().await;
    let again = client(&path, &clock, 1, 1).await;
    assert_eq!(again.record().await, record);
    again.release(&lease).await;
    let next = again.acquire().await;
    assert_eq!(next.token, Token::new(lease.token.get() + 1).unwrap());
}

/// Copies the files: their state after a power cut if everything so far had been synced and nothing after it.
pub(super) fn copy(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in ["locks.db", "locks.db-wal"] {
        fs::copy(folder.join(file), copy.path().join(file)).unwrap();
    }
    copy
}
