//! Several processes on one file: one winner of each race, and a holder that is gone does not hold until its ttl is over.

use std::process::{Child, Command};
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{LockName, Process};
use leasehold::store::{member, this_process};

use crate::engines::race::{one_at_a_time, one_winner_each};

/// A process to stand behind a lease.
fn somebody() -> (Child, Process) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let members = vec![member(child.id()).unwrap()];
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
fn a_crowd_in_two_processes_has_the_lock_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    one_at_a_time(&format!("sqlite:{}", folder.path().join("locks.db").display()), 20);
}

#[tokio::test]
async fn a_holder_that_was_killed_does_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let leasehold = connect(&folder).await;
    let (mut child, process) = somebody();
    let held = leasehold.lock("lock").process(Some(process)).acquire().await.unwrap();
    leasehold.lock("lock").acquire().await.unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    let status = leasehold.status(&LockName::new("lock").unwrap()).await.unwrap();
    assert!(status.is_locked && status.is_stale);
    let next = leasehold.lock("lock").acquire().await.unwrap();
    assert!(next.token() > held.token());
}

#[tokio::test]
async fn a_waiter_gets_in_when_the_holder_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let leasehold = connect(&folder).await;
    let (mut child, process) = somebody();
    let hour = Duration::from_hours(1);
    let _held = leasehold.lock("lock").ttl(hour).process(Some(process)).acquire().await.unwrap();
    let waits = tokio::spawn(leasehold.lock("lock").wait(Duration::from_secs(30)).acquire());
    let name = LockName::new("lock").unwrap();
    while leasehold.status(&name).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(waits.await.unwrap().unwrap());
}

#[tokio::test]
async fn a_dead_waiter_is_passed_over_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let leasehold = connect(&folder).await;
    let (mut child, process) = somebody();
    let held = leasehold.lock("lock").acquire().await.unwrap();
    // Stands in line and dies without a word.
    let line = leasehold.lock("lock").process(Some(process)).wait(Duration::from_mins(1)).acquire();
    let dead = tokio::spawn(line);
    let name = LockName::new("lock").unwrap();
    while leasehold.status(&name).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    held.release().await.unwrap();
    drop(leasehold.lock("lock").acquire().await.unwrap());
    dead.abort();
}
