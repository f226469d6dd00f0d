//! Deadlocks: which requests belong to a ring, and the check when a request joins the queue.

use std::time::Duration;

use leasehold::client::Deadlocks;
use leasehold::{Error, Leasehold};

use super::support::memory;

const WAIT: Duration = Duration::from_secs(30);

/// Waits until this number of locks has waiters; returns the search.
async fn search_with_waiters(leasehold: &Leasehold, waited: usize) -> Deadlocks {
    loop {
        let search = leasehold.locks().deadlocks().await.unwrap();
        if search.examined == waited {
            return search;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn acquire(leasehold: &Leasehold, lock: &str) {
    drop(leasehold.lock(lock).wait(WAIT).acquire().await);
}

#[tokio::test]
async fn work_under_a_guard_waits_within_its_lease() {
    let leasehold = memory().await;
    let (a, b) = (leasehold.lock("a").acquire().await.unwrap(), leasehold.lock("b").acquire().await.unwrap());
    let search = tokio::select! {
        _ = a.run(async |_| acquire(&leasehold, "b").await) => panic!("b is held"),
        _ = b.run(async |_| acquire(&leasehold, "a").await) => panic!("a is held"),
        search = search_with_waiters(&leasehold, 2) => search,
    };
    assert_eq!(search.found.len(), 1, "{search:?}");
    assert_eq!(search.found[0].lock_list(), "'a' and 'b'");
    assert!(search.complete);
}

/// Two requests of one process wait for locks of the same process: nothing says that a holder waits.
#[tokio::test]
async fn independent_requests_of_one_holder_are_no_ring() {
    let leasehold = memory().await;
    let (a, b) = (leasehold.lock("a").acquire().await.unwrap(), leasehold.lock("b").acquire().await.unwrap());
    let search = tokio::select! {
        () = acquire(&leasehold, "a") => panic!("a is held"),
        () = acquire(&leasehold, "b") => panic!("b is held"),
        search = search_with_waiters(&leasehold, 2) => search,
    };
    assert!(search.found.is_empty(), "{search:?}");
    drop((a, b));
}

#[tokio::test]
async fn a_request_for_several_locks_waits_within_those_that_it_has() {
    let leasehold = memory().await;
    let c = leasehold.lock("c").acquire().await.unwrap();
    let search = tokio::select! {
        _ = leasehold.lock("a").and("c").wait(WAIT).acquire() => panic!("c is held"),
        _ = c.run(async |_| {
            while !leasehold.locks().status("a").await.unwrap().is_locked {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            acquire(&leasehold, "a").await;
        }) => panic!("a is held"),
        search = search_with_waiters(&leasehold, 2) => search,
    };
    assert_eq!(search.found.len(), 1, "{search:?}");
}

#[tokio::test]
async fn a_checked_request_fails_instead_of_closing_a_ring() {
    let leasehold = memory().await;
    let (a, b) = (leasehold.lock("a").acquire().await.unwrap(), leasehold.lock("b").acquire().await.unwrap());
    let first = leasehold.lock("b").within(a.lease_refs()).wait(WAIT).acquire();
    let second = async {
        search_with_waiters(&leasehold, 1).await;
        let request = leasehold.lock("a").within(b.lease_refs()).wait(WAIT).check_deadlock();
        request.acquire().await.map(drop)
    };
    let error = tokio::select! {
        _ = first => panic!("b is held"),
        second = second => second.unwrap_err(),
    };
    assert_eq!(error.code(), "DEADLOCK");
    assert!(error.to_string().starts_with("waiting for lock 'a' would not end: deadlock of 'a' and 'b': "));
    let Error::Deadlock { deadlock, .. } = error else { panic!("{error}") };
    assert_eq!(deadlock.waits.len(), 2);
    let status = leasehold.locks().status("a").await.unwrap();
    assert!(status.waiters.is_empty(), "the request has left the queue: {status:?}");
}

#[tokio::test]
async fn a_checked_request_without_a_ring_waits() {
    let leasehold = memory().await;
    let held = leasehold.lock("a").acquire().await.unwrap();
    let (guard, ()) = tokio::join!(leasehold.lock("a").wait(WAIT).check_deadlock().acquire(), async {
        search_with_waiters(&leasehold, 1).await;
        held.release().await.unwrap();
    });
    guard.unwrap().release().await.unwrap();
}

/// Only locks with waiters are kept in memory and examined, however many locks are held.
#[tokio::test]
async fn idle_locks_are_not_examined() {
    let leasehold = memory().await;
    let mut held = Vec::new();
    for number in 0..3000 {
        held.push(leasehold.lock(format!("idle-{number}")).acquire().await.unwrap());
    }
    let search = leasehold.locks().deadlocks().await.unwrap();
    assert_eq!((search.examined, search.complete, search.found.len()), (0, true, 0));
}
