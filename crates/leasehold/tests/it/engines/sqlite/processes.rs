//! Several processes on one file: each race has one winner, and the lease of a dead holder ends before its TTL.

use std::process::{Child, Command};
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{LockName, Process};
use leasehold::store::{process_identity, this_process};

use crate::engines::race::{one_at_a_time, one_winner_each};

/// Starts a process that a lease can be bound to.
fn spawn_process() -> (Child, Process) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let members = vec![process_identity(child.id()).unwrap()];
    (child, Process { members, ..this_process().unwrap() })
}

async fn connect(folder: &tempfile::TempDir) -> Leasehold {
    Leasehold::connect(&format!("sqlite:{}", folder.path().join("locks.db").display())).await.unwrap()
}

#[test]
fn a_race_between_processes_has_one_winner() {
    let folder = tempfile::tempdir().unwrap();
    one_winner_each(&format!("sqlite:{}", folder.path().join("locks.db").display()));
}

#[test]
fn clients_of_two_processes_hold_the_lock_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    one_at_a_time(&format!("sqlite:{}", folder.path().join("locks.db").display()), 20);
}

#[tokio::test]
async fn a_killed_holder_loses_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let leasehold = connect(&folder).await;
    let (mut child, process) = spawn_process();
    let held = leasehold.lock("lock").process(Some(process)).acquire().await.unwrap();
    leasehold.lock("lock").acquire().await.unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    let status = leasehold.locks().status(&LockName::new("lock").unwrap()).await.unwrap();
    assert!(status.is_locked && status.is_stale);
    let next = leasehold.lock("lock").acquire().await.unwrap();
    assert!(next.token() > held.token());
}

#[tokio::test]
async fn a_waiter_acquires_the_lock_when_the_holder_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let leasehold = connect(&folder).await;
    let (mut child, process) = spawn_process();
    let hour = Duration::from_hours(1);
    let _held = leasehold.lock("lock").ttl(hour).process(Some(process)).acquire().await.unwrap();
    let waiter = tokio::spawn(leasehold.lock("lock").wait(Duration::from_secs(30)).acquire());
    let name = LockName::new("lock").unwrap();
    while leasehold.locks().status(&name).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(waiter.await.unwrap().unwrap());
}

#[tokio::test]
async fn a_dead_waiter_is_skipped_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let leasehold = connect(&folder).await;
    let (mut child, process) = spawn_process();
    let held = leasehold.lock("lock").acquire().await.unwrap();
    // Waits in the queue and is killed.
    let acquire = leasehold.lock("lock").process(Some(process)).wait(Duration::from_mins(1)).acquire();
    let dead = tokio::spawn(acquire);
    let name = LockName::new("lock").unwrap();
    while leasehold.locks().status(&name).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    held.release().await.unwrap();
    drop(leasehold.lock("lock").acquire().await.unwrap());
    dead.abort();
}
