//! Acquiring: invalid arguments, the status of a lock, cleanup of dropped requests.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{EventKind, Holder, Reason, Ttl};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{ListEvents, ListLocks};
use leasehold::testing::TestClient;
use leasehold::{Error, Leasehold, LockBuilder};

use super::support::{memory, name, until};

#[tokio::test]
async fn invalid_arguments_are_rejected_before_the_store_is_called() {
    type Build = fn(&Leasehold) -> LockBuilder;
    let leasehold = memory().await;
    let invalid: [(Build, &str); 9] = [
        (|l| l.lock(""), "the lock name is empty"),
        (|l| l.lock("a\0b"), "the lock name \"a\\0b\" has a control character at position 2"),
        (|l| l.lock("a").ttl(Duration::ZERO), "a duration of 0 is too short; 1ms is the least"),
        (|l| l.lock("a").ttl(Duration::MAX), "the duration is too long; 3650d is the most"),
        (|l| l.lock("a").slots(0), "a lock cannot have 0 slots; it has 1 to 1000"),
        (|l| l.lock("a").shared().slots(2), "a shared lock has no slots; choose one of the two"),
        (|l| l.lock("a").priority(5000), "a priority of 5000 is out of bounds; it is -1000 to 1000"),
        (|l| l.lock("a").and("a"), "lock 'a' is named twice"),
        (|l| l.lock("a").renew_at(1.0), "invalid renewal fraction 1: must be 0.05 to 0.9 of the ttl"),
    ];
    for (build, message) in invalid {
        let error = build(&leasehold).acquire().await.unwrap_err();
        assert_eq!((error.to_string().as_str(), error.code()), (message, "INVALID"));
    }
    assert!(leasehold.locks().list(&ListLocks::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn the_status_of_a_lock_shows_its_holder() {
    let leasehold = memory().await;
    let free = leasehold.locks().status(&name("lock")).await.unwrap();
    assert!(!free.is_locked && free.holder.is_none() && free.locked_since.is_none());
    let guard =
        leasehold.lock("lock").holder("ada").meta("host", "h1").reason("why not").acquire().await.unwrap();
    let held = leasehold.locks().status(&name("lock")).await.unwrap();
    assert!(held.is_locked && !held.is_stale);
    assert_eq!(held.holder.as_ref().unwrap().as_str(), "ada");
    assert_eq!((held.token, held.holders[0].metadata.get("reason")), (guard.token(), Some("why not")));
    assert!(held.locked_since.unwrap() <= held.now && held.now < held.expires_at.unwrap());
    let json = serde_json::to_value(&held).unwrap();
    for key in ["isLocked", "isStale", "holder", "lockedSince", "expiresAt", "token"] {
        assert!(json.get(key).is_some(), "{key} is missing in {json}");
    }
    assert!(json["expiresAt"].as_str().unwrap().ends_with('Z'));
    guard.release().await.unwrap();
    assert_eq!(leasehold.locks().history(&ListEvents::default()).await.unwrap().items.len(), 2);
}

#[tokio::test]
async fn a_conflict_names_the_holder() {
    let leasehold = memory().await;
    let _guard = leasehold.lock("lock").holder("ada").acquire().await.unwrap();
    let error = leasehold.lock("lock").holder("bob").acquire().await.unwrap_err();
    assert!(error.to_string().starts_with("Execution blocked: lock 'lock' held by ada until 2"), "{error}");
    let Error::Conflict { conflict, waited, .. } = error else { panic!("{error:?}") };
    assert_eq!((conflict.holders.len(), waited), (1, Duration::ZERO));
    let left = conflict.left(&conflict.holders[0]).unwrap();
    assert!(Duration::from_secs(25) < left && left <= Duration::from_secs(30), "{left:?}");
    let held = leasehold.locks().status(&name("lock")).await.unwrap();
    assert_eq!(conflict.holders[0].lease, Some(held.holders[0].lease_ref));
    assert_ne!(held.holders[0].lease_ref.to_string(), held.holders[0].lease_id.to_string());
}

#[tokio::test]
async fn a_free_lock_names_the_lease_that_ended_last() {
    let leasehold = memory().await;
    let status = async || leasehold.locks().status(&name("lock")).await.unwrap();
    assert!(status().await.last.is_none(), "it was never held");
    let guard = leasehold.lock("lock").holder("ada").acquire().await.unwrap();
    assert!(status().await.last.is_none(), "it is held");
    let token = guard.token();
    guard.release().await.unwrap();
    let last = status().await.last.unwrap();
    assert_eq!((last.status, last.holder.as_str(), last.token), (EventKind::Released, "ada", token));
    assert_eq!(serde_json::to_value(status().await).unwrap()["last"]["status"], "released");
    let guard = leasehold.lock("lock").holder("bob").acquire().await.unwrap();
    let (eve, why) = (Holder::new("eve").unwrap(), Reason::new("stuck").unwrap());
    leasehold.locks().force_release(&name("lock"), guard.token(), eve.clone(), why).await.unwrap();
    let last = status().await.last.unwrap();
    assert_eq!((last.status, last.holder.as_str(), last.by), (EventKind::Forced, "bob", Some(eve)));
}

/// The process of the holder is dead, and no sweep has removed its lease.
#[tokio::test]
async fn a_takeover_names_the_holder_whose_lease_expired() {
    let leasehold = memory().await;
    let request = leasehold.lock("lock").holder("ada").ttl(Duration::from_millis(50));
    request.acquire().await.unwrap().detach();
    tokio::time::sleep(Duration::from_millis(60)).await;
    let guard = leasehold.lock("lock").holder("bob").acquire().await.unwrap();
    let (_, lease) = guard.leases().pop().unwrap();
    let before = lease.took_over.as_ref().unwrap();
    assert_eq!(before.holder.as_str(), "ada");
    let takeover = before.describe(lease.acquired_at);
    assert!(
        takeover.starts_with("took over the lease of ada, which expired ")
            && takeover.ends_with("without a release"),
        "{takeover}"
    );
}

#[tokio::test]
async fn a_dropped_waiter_leaves_the_queue() {
    let leasehold = memory().await;
    let _guard = leasehold.lock("lock").acquire().await.unwrap();
    let waits = tokio::spawn(leasehold.lock("lock").wait(Duration::from_mins(1)).acquire());
    let waiters = async |count| leasehold.locks().status(&name("lock")).await.unwrap().waiters.len() == count;
    until("queued", async || waiters(1).await).await;
    waits.abort();
    until("left", async || waiters(0).await).await;
}

#[tokio::test]
async fn maintenance_removes_abandoned_leases() {
    let store = Arc::new(MemoryStore::new());
    let leasehold = Leasehold::with_store(store.clone()).unwrap();
    let mut client = TestClient::new(store, 1, name("lock"));
    client.request.ttl = Ttl::from_millis(20);
    client.acquire().await;
    let _maintenance =
        leasehold.maintain_locks(Duration::from_millis(10), Some(leasehold::FORGET_LOCKS_AFTER));
    until("cleared", async || leasehold.locks().status(&name("lock")).await.unwrap().holders.is_empty())
        .await;
}
