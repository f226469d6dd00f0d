//! Instrumented store: it behaves like the store that it wraps, and its counters are right.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockOp};
use leasehold::model::{AttemptResult, FinishedFilter, HeldTask, LeaseTasks, Settle, Token, WorkerInfo};
use leasehold::model::{
    LockName, NewTask, Payload, QueueName, Reason, TaskId, TaskOp, TaskUpdate, Ttl, WorkerId,
};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, InstrumentedStore, NewDocument, Store};
use leasehold::testing::{Fixture, TestClient, agrees_with_the_rules, tasks_agree_with_the_rules};
use leasehold::{Leasehold, Strategy};

async fn fresh() -> Fixture {
    let clock = super::support::clock();
    let store = Arc::new(InstrumentedStore::new(Arc::new(MemoryStore::with_clock(clock.clone()))));
    Fixture::new(store.clone(), store, clock, ())
}

mod locks {
    leasehold::lock_conformance!(crate::engines::instrumented::fresh);
}

mod docs {
    leasehold::doc_conformance!(crate::engines::instrumented::fresh);
}

mod tasks {
    leasehold::task_conformance!(crate::engines::instrumented::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(64, fresh);
    tasks_agree_with_the_rules(64, fresh);
}

fn manual() -> (Leasehold, Arc<InstrumentedStore>, Clock) {
    let clock = super::support::clock();
    let store = Arc::new(InstrumentedStore::new(Arc::new(MemoryStore::with_clock(clock.clone()))));
    (Leasehold::with_store(store.clone()).unwrap(), store, clock)
}

/// Returns the number of leases that ended in this way.
fn recovered(metrics: &leasehold::store::MetricsSnapshot, way: &str) -> u64 {
    metrics.recovered.iter().find(|(name, _)| *name == way).unwrap().1
}

#[tokio::test]
async fn acquisitions_and_releases_are_counted() {
    let (leasehold, metrics) = Leasehold::connect("memory:").await.unwrap().instrumented();
    for _ in 0..3 {
        leasehold.lock("a").acquire().await.unwrap().release().await.unwrap();
    }
    let held = leasehold.lock("a").acquire().await.unwrap();
    leasehold.lock("a").acquire().await.unwrap_err();
    let reading = metrics.read().await;
    assert_eq!((reading.acquisitions, reading.releases, reading.conflicts), (4, 3, 1));
    assert_eq!((reading.retries, reading.failures, reading.recovered_in_all()), (0, 0, 0));
    assert_eq!((reading.acquire.count(), reading.hold.count()), (4, 3));
    let acquire = reading.operations.iter().find(|operation| operation.op == "lock_acquire").unwrap();
    assert_eq!((acquire.took.count(), acquire.errors), (5, 0));
    drop(held);
}

#[tokio::test]
async fn a_waiting_request_counts_as_one_conflict_and_its_wait_is_timed() {
    let (leasehold, metrics) = Leasehold::connect("memory:").await.unwrap().instrumented();
    let first = leasehold.lock("a").acquire().await.unwrap();
    let second = tokio::spawn(leasehold.lock("a").wait(Duration::from_secs(20)).acquire());
    while metrics.read().await.conflicts == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(60)).await;
    first.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    let reading = metrics.read().await;
    assert_eq!((reading.acquisitions, reading.releases), (2, 2));
    assert_eq!((reading.conflicts, reading.retries), (1, 0));
    assert!(reading.acquire.sum >= 0.06, "{:?}", reading.acquire);
}

#[tokio::test]
async fn a_request_that_leaves_the_queue_is_not_counted_as_a_retry() {
    let (leasehold, metrics) = Leasehold::connect("memory:").await.unwrap().instrumented();
    let _held = leasehold.lock("a").acquire().await.unwrap();
    leasehold.lock("a").wait(Duration::from_millis(20)).acquire().await.unwrap_err();
    let reading = metrics.read().await;
    assert_eq!((reading.acquisitions, reading.conflicts, reading.retries), (1, 1, 0));
}

#[tokio::test]
async fn a_repeated_request_counts_as_one_conflict_and_its_repetitions_as_retries() {
    let (leasehold, metrics) = Leasehold::connect("memory:").await.unwrap().instrumented();
    let _held = leasehold.lock("a").acquire().await.unwrap();
    let backoff = leasehold::Backoff::default().initial_delay(Duration::from_millis(1)).max_retries(3);
    leasehold.lock("a").strategy(Strategy::Retry(backoff)).acquire().await.unwrap_err();
    let reading = metrics.read().await;
    assert_eq!((reading.conflicts, reading.retries), (1, 3));
}

/// The request is repeated three times; the third repetition is granted.
#[tokio::test]
async fn a_granted_retry_is_counted() {
    let (_, store, _) = manual();
    let lock = LockName::new("a").unwrap();
    let [ada, bob] = [1, 2].map(|id| TestClient::new(store.clone(), id, lock.clone()));
    let lease = ada.acquire().await;
    for _ in 0..3 {
        bob.expect_conflict().await;
    }
    ada.release(&lease).await;
    bob.acquire().await;
    let reading = store.read().await;
    assert_eq!((reading.acquisitions, reading.conflicts, reading.retries), (2, 1, 3));
}

/// The store grants the lock, the answer is lost, and the client repeats the request.
#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_counted_once() {
    let (_, store, clock) = manual();
    let lock = LockName::new("a").unwrap();
    let ada = TestClient::new(store.clone(), 1, lock.clone());
    let request = Arc::new(ada.request.clone());
    let acquire = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
    store.below().locks().apply(&lock, &acquire).await.unwrap();
    clock.advance(Duration::from_millis(300));
    for _ in 0..2 {
        ada.acquire().await;
    }
    assert_eq!(store.read().await.acquisitions, 1);
}

#[tokio::test]
async fn leases_that_end_without_a_release_are_counted_by_cause() {
    let (leasehold, metrics, clock) = manual();
    let ttl = Duration::from_secs(10);
    let abandon = async |lock: &str| {
        let guard = leasehold.lock(lock).ttl(ttl).acquire().await.unwrap();
        // As if the process had died: the lease is neither renewed nor released.
        std::mem::forget(guard);
    };
    for lock in ["expired", "stolen", "forced", "swept", "released"] {
        abandon(lock).await;
    }
    let forced = LockName::new("forced").unwrap();
    let status = leasehold.locks().status(&forced).await.unwrap();
    let (by, reason) = (status.holders[0].holder.clone(), Reason::new("x").unwrap());
    leasehold.locks().force_release(&forced, status.token, by, reason).await.unwrap();
    clock.advance(Duration::from_secs(5));
    let stolen = leasehold.lock("stolen").steal_stale(Duration::from_secs(3)).acquire().await.unwrap();
    // Released without the instrumented store, as by another process.
    let released = LockName::new("released").unwrap();
    let status = leasehold.locks().status(&released).await.unwrap();
    let release = leasehold::model::Release {
        lease_id: status.holders[0].lease_id,
        token: status.token,
        at_least: None,
    };
    let below = metrics.below();
    below.locks().apply(&released, &leasehold::model::LockOp::Release(release)).await.unwrap();
    let again = leasehold.lock("released").acquire().await.unwrap();
    clock.advance(Duration::from_secs(6));
    let expired = leasehold.lock("expired").acquire().await.unwrap();
    assert_eq!(leasehold.locks().sweep(100).await.unwrap().leases, 1);
    let reading = metrics.read().await;
    let counts = ["expired", "stolen", "forced", "swept"].map(|name| recovered(&reading, name));
    assert_eq!(counts, [1, 1, 1, 1]);
    drop((stolen, again, expired));
}

#[tokio::test]
async fn task_leases_and_late_changes_are_counted() {
    let (_, store, clock) = manual();
    let tasks = store.tasks().unwrap();
    let queue = QueueName::new("q").unwrap();
    let new = |number: u128| {
        let id = TaskId::from_uuid(uuid::Uuid::from_u128(number));
        NewTask::new(id, queue.clone(), Payload::new("{}").unwrap())
    };
    tasks.enqueue(&[new(1), new(2)]).await.unwrap();
    let worker = WorkerId::from_uuid(uuid::Uuid::from_u128(9));
    let ttl = Ttl::from_secs(10);
    let request = LeaseTasks::new(worker, vec![queue.clone()], 10, ttl);
    let leased = tasks.lease(&request).await.unwrap().tasks;
    let (id, token) = (leased[0].id, leased[0].token);
    let old = Token::new(token.get() - 1).unwrap();
    tasks.settle(&[Settle { id, token: old, result: AttemptResult::Done(None) }]).await.unwrap();
    let info = WorkerInfo {
        id: worker,
        host: "h".to_owned(),
        pid: 1,
        version: "0".to_owned(),
        queues: vec![queue],
        slots: 1,
        busy: 1,
        draining: false,
        every: ttl,
    };
    tasks.heartbeat(&info, &[HeldTask::new(id, old)], ttl).await.unwrap();
    let change = TaskOp::Update(TaskUpdate { expected: 999, ..TaskUpdate::default() });
    tasks.change(id, &change).await.unwrap();
    clock.advance(Duration::from_secs(11));
    tasks.recover(10).await.unwrap();
    let docs = store.documents().unwrap();
    docs.put_if("d", Some(7), NewDocument::new("")).await.unwrap();
    let reading = store.read().await;
    assert_eq!(reading.task_leases, 2);
    assert_eq!(reading.task_lease_conflicts, 2);
    assert_eq!(reading.task_leases_expired, 2);
    assert_eq!(reading.version_conflicts, [("task", 1), ("document", 1)]);
    let filter = FinishedFilter { queue: None, state: None, before: tasks.now().await.unwrap(), limit: 1 };
    tasks.purge(&filter).await.unwrap();
}
