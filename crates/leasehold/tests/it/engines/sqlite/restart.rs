//! A proved restart of the machine, with or without a power cut before it. What is no proof is in `boot.rs`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use leasehold::model::{LockName, Outcome, Token};
use leasehold::store::{Clock, Store};
use leasehold::testing::Player;

use super::suite::open;
use crate::engines::support::clock;

async fn player(path: &Path, clock: &Clock, boot: u128, number: u128) -> Player {
    let store: Arc<dyn Store> = open(path, clock, boot).await;
    Player::new(store, number, LockName::new("lock").unwrap())
}

#[tokio::test]
async fn a_restart_frees_what_this_machine_held() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let before = player(&path, &clock, 1, 1).await.of_boot(1).takes().await;
    let same_boot = player(&path, &clock, 1, 2).await;
    same_boot.is_refused().await;
    let after = player(&path, &clock, 2, 3).await.takes().await;
    assert!(after.token > before.token);
}

/// Processes of one boot that had several boot ids are all gone with it.
#[tokio::test]
async fn a_restart_frees_what_containers_held() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let store: Arc<dyn Store> = open(&path, &clock, 1).await;
    for (number, name) in [(1, "host"), (2, "container")] {
        let player = Player::new(store.clone(), number, LockName::new(name).unwrap());
        player.of_boot(40 + number).takes().await;
    }
    let after: Arc<dyn Store> = open(&path, &clock, 2).await;
    for (number, name) in [(3, "host"), (4, "container")] {
        Player::new(after.clone(), number, LockName::new(name).unwrap()).takes().await;
    }
}

#[tokio::test]
async fn a_restart_leaves_a_holder_elsewhere_its_whole_time() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let far_away = player(&path, &clock, 1, 1).await;
    let lease = far_away.takes().await;
    // The clock may have jumped with the restart: what counts is that nobody gets in before the holder has noticed.
    clock.advance(std::time::Duration::from_hours(1));
    let after = player(&path, &clock, 2, 2).await;
    after.is_refused().await;
    let holder = player(&path, &clock, 2, 1).await;
    assert!(matches!(holder.renews(&lease).await, Outcome::Renewed(_)));
}

/// A power cut may lose whatever was not synced. Grants to this machine's processes are not, and they end with it; but
/// somebody else may have seen their tokens.
#[tokio::test]
async fn a_power_cut_never_lets_a_token_be_given_again() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let one = player(&path, &clock, 1, 1).await.of_boot(1);
    let first = one.takes().await;
    one.releases(&first).await;
    let kept = copy(folder.path());
    // All of this is lost, though the tokens have been seen. The clock stands still: it is no help.
    let mut newest = first.token;
    for _ in 0..50 {
        let lease = one.takes().await;
        assert!(lease.token > newest);
        newest = lease.token;
        one.releases(&lease).await;
    }
    let path = kept.path().join("locks.db");
    let after = player(&path, &clock, 2, 2).await;
    assert!(after.record().await.token >= newest, "an old token must not pass for the newest");
    assert!(after.takes().await.token > newest);
    let other_lock = Player::new(after.store.clone(), 3, LockName::new("other").unwrap());
    assert!(other_lock.takes().await.token > newest);
}

/// Without a restart nothing is lost: tokens go on one by one.
#[tokio::test]
async fn opening_again_in_the_same_boot_changes_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("locks.db");
    let one = player(&path, &clock, 1, 1).await;
    let lease = one.takes().await;
    let record = one.record().await;
    let again = player(&path, &clock, 1, 1).await;
    assert_eq!(again.record().await, record);
    again.releases(&lease).await;
    let next = again.takes().await;
    assert_eq!(next.token, Token::new(lease.token.get() + 1).unwrap());
}

/// The files as they are now: what would be there after a power cut, had everything so far been synced and nothing
/// after it.
fn copy(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in ["locks.db", "locks.db-wal"] {
        fs::copy(folder.join(file), copy.path().join(file)).unwrap();
    }
    copy
}
