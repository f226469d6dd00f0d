//! Faults on the connection between a store and a real engine: lost answers and late requests.
//!
//! Each engine provides a [`Lab`]; the tests are the same for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{
    Acquire, EventKind, ForceRelease, Holder, LeaseId, LockName, LockOp, Outcome, Reason, Release,
    RequestRelease, RetryPolicy, TaskState, Ttl, Withdraw,
};
use leasehold::store::{Cursor, EventRange, ListEvents, ListLocks, Store};
use leasehold::testing::TestClient;
use leasehold::testing::task_fixture::task;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType};
use serde::{Deserialize, Serialize};

use super::proxy::{Fault, Proxy};

/// Proxy in front of the engine, a store that uses the proxy, and one with a direct connection.
pub(crate) struct Lab {
    pub(crate) proxy: Proxy,
    pub(crate) through: Arc<dyn Store>,
    pub(crate) straight: Arc<dyn Store>,
}

/// Delay that exceeds every request timeout.
const LATE: Duration = Duration::from_secs(8);

/// Name of the lock that the faults are for.
pub(crate) const LOCK: &str = "wire-lock";

fn client(store: &Arc<dyn Store>, lock: &str) -> TestClient {
    let mut client = TestClient::new(store.clone(), 1, LockName::new(lock).unwrap());
    client.request.lease_id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    client.request.ttl = Ttl::from_secs(60);
    client
}

async fn kinds(store: &Arc<dyn Store>, lock: &LockName) -> Vec<EventKind> {
    let query = ListEvents::default().lock(lock.clone()).span(EventRange::After(Cursor::start())).limit(100);
    store.locks().history(&query).await.unwrap().items.into_iter().map(|event| event.kind).collect()
}

/// Applies an operation whose answer is lost: the caller gets a retryable error.
async fn apply_with_lost_answer(lab: &Lab, lock: &LockName, op: &LockOp) {
    lab.proxy.set(Fault::DropReplies(1));
    let error = lab.through.locks().apply(lock, op).await.unwrap_err();
    lab.proxy.set(Fault::None);
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{op:?}: {error:?}");
    assert!(error.is_retryable(), "{op:?}: {error:?}");
}

/// Opens and warms up the connection: the next reply is the answer to the next operation.
async fn warm_up(lab: &Lab) {
    for _ in 0..2 {
        let one = client(&lab.through, LOCK);
        let lease = one.acquire().await;
        assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
    }
}

/// The store does not repeat a release by itself: it reports that the outcome is unknown, and a caller that repeats the
/// release gets the correct answer. The release is applied once.
pub(crate) async fn a_release_whose_answer_is_lost_is_unknown_and_done_once(lab: Lab) {
    warm_up(&lab).await;
    let one = client(&lab.through, LOCK);
    let lease = one.acquire().await;
    let release = LockOp::Release(Release { lease_id: one.id(), token: lease.token, at_least: None });
    apply_with_lost_answer(&lab, &one.lock, &release).await;
    assert!(matches!(one.release(&lease).await, Outcome::NotHeld(_)));
    let events = kinds(&lab.straight, &one.lock).await;
    assert_eq!(events.iter().filter(|kind| **kind == EventKind::Released).count(), 3, "{events:?}");
}

/// The same for a forced release and for a request to release.
pub(crate) async fn a_force_or_an_ask_whose_answer_is_lost_is_unknown_and_done_once(lab: Lab) {
    warm_up(&lab).await;
    let one = client(&lab.through, LOCK);
    let lease = one.acquire().await;
    let (by, reason) = (Holder::new("ada").unwrap(), Reason::new("stuck").unwrap());
    // A request without effect comes first: it does the one-time work, such as preparing a statement.
    let nothing =
        RequestRelease { token: Some(lease.token.next(lease.expires_at)), by: by.clone(), reason: None };
    assert!(matches!(one.apply(LockOp::RequestRelease(nothing)).await, Outcome::NotHeld(_)));
    assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_)));
    let request = RequestRelease { token: Some(lease.token), by: by.clone(), reason: Some(reason.clone()) };
    apply_with_lost_answer(&lab, &one.lock, &LockOp::RequestRelease(request)).await;
    let events = kinds(&lab.straight, &one.lock).await;
    assert!(events.iter().filter(|kind| **kind == EventKind::ReleaseRequested).count() <= 1, "{events:?}");
    assert!(one.holds().await);
    let force = LockOp::ForceRelease(ForceRelease { token: lease.token, by, reason });
    apply_with_lost_answer(&lab, &one.lock, &force).await;
    // Repeated by the caller: it is applied now, or was before.
    assert!(matches!(one.force_release(lease.token).await, Outcome::NotHeld(_) | Outcome::Forced(_)));
    let events = kinds(&lab.straight, &one.lock).await;
    assert_eq!(events.iter().filter(|kind| **kind == EventKind::Forced).count(), 1, "{events:?}");
}

/// A request that reaches the engine after its client has timed out and withdrawn it acquires no lock.
pub(crate) async fn an_acquire_that_comes_late_takes_no_lock(lab: Lab, queue: Option<Ttl>) {
    warm_up(&lab).await;
    let held = match queue {
        Some(_) => {
            let holder = client(&lab.straight, LOCK);
            let lease = holder.acquire().await;
            // The store learns the layout of the lock and uses the path for a lock with a queue.
            let one = client(&lab.through, LOCK);
            one.expect_queued().await;
            one.withdraw().await;
            Some((holder, lease))
        }
        None => None,
    };
    let one = client(&lab.through, LOCK);
    lab.proxy.set(Fault::DelayRequest(LATE));
    let (request, started) = (Arc::new(one.request.clone()), Instant::now());
    let acquire = LockOp::Acquire(Acquire { request, queue, steal_after: None });
    let result = lab.through.locks().apply(&one.lock, &acquire).await;
    assert!(started.elapsed() < Duration::from_millis(5500), "{:?}", started.elapsed());
    // Some engines repeat the request before the timeout. A granted lease is released, and an unknown one withdrawn.
    match result {
        Ok(Outcome::Granted(lease)) => assert!(matches!(one.release(&lease).await, Outcome::Released(_))),
        Ok(Outcome::Queued(_)) | Err(_) => assert_eq!(one.withdraw().await, Outcome::Withdrawn),
        other => panic!("{other:?}"),
    }
    if let Some((holder, lease)) = held {
        assert!(matches!(holder.release(&lease).await, Outcome::Released(_)));
    }
    assert!(started.elapsed() < LATE, "too late to prove anything: {:?}", started.elapsed());
    while !lab.proxy.delayed_requests_are_done() {
        assert!(started.elapsed() < 3 * LATE, "the delayed request was never done");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let record = lab.straight.locks().get(&one.lock).await.unwrap().unwrap();
    assert!(record.holders.is_empty(), "a late request has acquired the lock: {record:?}");
    assert!(record.waiters.is_empty(), "a late request has joined the queue: {record:?}");
    let other = client(&lab.straight, LOCK);
    other.acquire().await;
}

/// An acquire whose connection breaks, and which reaches the engine after later requests on a new connection.
pub(crate) async fn an_acquire_on_a_broken_connection_takes_nothing_later(lab: Lab) {
    warm_up(&lab).await;
    let one = client(&lab.through, LOCK);
    lab.proxy.set(Fault::DelayRequest(Duration::from_secs(1)));
    let acquire =
        LockOp::Acquire(Acquire { request: Arc::new(one.request.clone()), queue: None, steal_after: None });
    // The call is dropped as soon as its request is delayed.
    tokio::select! {
        biased;
        () = lab.proxy.wait_until_delayed() => {}
        answer = lab.through.locks().apply(&one.lock, &acquire) => panic!("not delayed: {answer:?}"),
    }
    let leave = LockOp::Withdraw(Withdraw { lease_id: one.id() });
    let started = Instant::now();
    // On Redis it waits for the delayed request, so on a busy machine it may exceed its own timeout. Clients repeat it.
    let withdrawn = loop {
        match lab.through.locks().apply(&one.lock, &leave).await {
            Err(error) if error.is_retryable() && started.elapsed() < LATE => {}
            answer => break answer.unwrap(),
        }
    };
    assert_eq!(withdrawn, Outcome::Withdrawn);
    while !lab.proxy.delayed_requests_are_done() {
        assert!(started.elapsed() < LATE, "the delayed request was never done");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let record = lab.straight.locks().get(&one.lock).await.unwrap().unwrap();
    assert!(record.holders.is_empty(), "a withdrawn request has acquired the lock: {record:?}");
}

#[derive(Debug, Serialize, Deserialize)]
struct Once(u32);

impl TaskType for Once {
    const QUEUE: &'static str = "once";
    const TTL: Duration = Duration::from_secs(20);
    const RETRIES: RetryPolicy =
        RetryPolicy { attempts: 1, initial_delay: Ttl::from_millis(1), max_delay: Ttl::from_millis(1) };
}

/// Tasks with one attempt, and a worker whose answers are lost repeatedly: each task runs, and none fails without
/// having run. The worker queries the store for tasks that were leased to it by a lost answer.
pub(crate) async fn no_task_fails_without_having_run(lab: Lab) {
    const TASKS: u32 = 40;
    let (through, straight) =
        (Leasehold::with_store(lab.through).unwrap(), Leasehold::with_store(lab.straight).unwrap());
    let runs = Arc::new(AtomicU32::new(0));
    let worker =
        through.worker().slots(2).handle_with(runs.clone(), |_: TaskContext<Once>, runs| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, HandlerError>(())
        });
    let all: Vec<Once> = (0..TASKS).map(Once).collect();
    let ids = straight.enqueue_all(&all).await.unwrap();
    let worker = worker.start().unwrap();
    let (started, mut faults) = (Instant::now(), 0);
    loop {
        if faults < 30 {
            lab.proxy.set(Fault::DropReplies(1));
            faults += 1;
        } else {
            lab.proxy.set(Fault::None);
        }
        let mut states = Vec::new();
        for id in &ids {
            states.push(straight.tasks().unwrap().get(*id).await.unwrap().state);
        }
        if states.iter().all(|state| state.is_terminal()) {
            assert!(states.iter().all(|state| *state == TaskState::Succeeded), "{states:?}");
            break;
        }
        assert!(started.elapsed() < Duration::from_mins(1), "{states:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(runs.load(Ordering::SeqCst) >= TASKS);
    lab.proxy.set(Fault::None);
    worker.stop(Duration::from_secs(5)).await;
}

/// An engine that accepts requests and answers none, like a frozen one: every call ends in time, on open connections
/// and on new ones.
pub(crate) async fn every_call_to_a_frozen_engine_ends_in_time(lab: Lab) {
    warm_up(&lab).await;
    let holder = client(&lab.through, "held");
    let lease = holder.acquire().await;
    add_alone(&lab).await;
    lab.proxy.set(Fault::BlackHole);
    for round in 0..2 {
        let (locks, tasks) = (lab.through.locks(), lab.through.tasks());
        let [a, b, c] = ["a", "b", "c"].map(|name| client(&lab.through, name));
        let acquire = |one: &TestClient, queue| {
            LockOp::Acquire(Acquire { request: Arc::new(one.request.clone()), queue, steal_after: None })
        };
        let ops = [
            ("acquire", a.lock.clone(), acquire(&a, None)),
            ("join", b.lock.clone(), acquire(&b, Some(Ttl::from_secs(5)))),
            ("leave", c.lock.clone(), LockOp::Withdraw(Withdraw { lease_id: c.id() })),
            (
                "release",
                holder.lock.clone(),
                LockOp::Release(Release { lease_id: holder.id(), token: lease.token, at_least: None }),
            ),
        ];
        let mut calls: Vec<(&'static str, Call<'_>)> = vec![
            ("get", Box::pin(async { locks.get(&holder.lock).await.is_err() })),
            ("now", Box::pin(async { locks.now().await.is_err() })),
        ];
        for (name, lock, op) in &ops {
            calls.push((name, Box::pin(async move { locks.apply(lock, op).await.is_err() })));
        }
        if let Some(tasks) = tasks {
            let queue = leasehold::model::QueueName::new("q").unwrap();
            let worker = leasehold::model::WorkerId::from_uuid(uuid::Uuid::now_v7());
            let request = leasehold::model::LeaseTasks::new(worker, vec![queue], 1, Ttl::from_secs(30));
            calls.push(("lease of tasks", Box::pin(async move { tasks.lease(&request).await.is_err() })));
            calls.push(("queues", Box::pin(async move { tasks.queues().await.is_err() })));
            for number in 1..=3 {
                let new = [task(1_000 + number)];
                calls.push(("enqueue", Box::pin(async move { tasks.enqueue(&new).await.is_err() })));
            }
        }
        futures_util::future::join_all(calls.into_iter().map(|(name, call)| timed(round, name, call))).await;
    }
    lab.proxy.set(Fault::None);
}

/// Adds tasks one after the other: a store may use another connection for a caller that adds tasks alone.
async fn add_alone(lab: &Lab) {
    let Some(tasks) = lab.through.tasks() else { return };
    for number in 1..=60 {
        tasks.enqueue(&[task(number)]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The first connection of a store is opened although its handshake is late, or its answer is lost.
///
/// The next attempt begins after two seconds and has three seconds. The test is repeated if a connection without a fault,
/// opened at the same time, needs most of them: then the machine is too slow to prove anything.
pub(crate) async fn a_first_connection_that_fails_is_tried_again<O>(
    proxy: impl Fn() -> (Proxy, O),
    connect: impl AsyncFn(&O) -> leasehold::Result<Arc<dyn Store>>,
) {
    for fault in [Fault::DelayRequest(LATE), Fault::DropReplies(1)] {
        for round in 1.. {
            let ((faulty, through_fault), (_healthy, through_healthy)) = (proxy(), proxy());
            faulty.set(fault);
            let undisturbed = async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                let started = Instant::now();
                let _ = connect(&through_healthy).await;
                started.elapsed()
            };
            let (opened, needed) = tokio::join!(Box::pin(connect(&through_fault)), Box::pin(undisturbed));
            match opened {
                Ok(store) => {
                    let connections = faulty.counts().connections;
                    assert!(connections > 1, "{fault:?}: the first connection did not fail");
                    store.locks().list(&ListLocks::default()).await.unwrap();
                    break;
                }
                Err(error) => {
                    let is_slow = needed > Duration::from_secs(1);
                    assert!(is_slow && round < 5, "{fault:?}: {error:?}; without the fault {needed:?}");
                }
            }
        }
    }
}

/// An engine that answers nothing delays the first connection of a store for as long as any call.
pub(crate) async fn a_first_connection_to_a_frozen_engine_ends_in_time(
    proxy: &Proxy,
    connect: impl AsyncFn() -> leasehold::Result<Arc<dyn Store>>,
) {
    proxy.set(Fault::BlackHole);
    let started = Instant::now();
    let error = connect().await.err().expect("nothing is answered");
    let took = started.elapsed();
    assert!(took < Duration::from_millis(5700), "{took:?}");
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
}

async fn timed(round: u32, name: &'static str, call: Call<'_>) {
    let started = Instant::now();
    let failed = call.await;
    let took = started.elapsed();
    assert!(took < Duration::from_millis(5700), "round {round}: {name} took {took:?}");
    // Some stores know the time of the engine without a request.
    assert!(failed || name == "now", "round {round}: {name} was answered");
}

/// Call that returns whether it failed.
type Call<'a> = std::pin::Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
