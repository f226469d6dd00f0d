//! Faults below the store, on the wire between it and a real engine: answers that get lost and requests that come late.
//!
//! Each engine brings a [`Lab`]; what is asked of it is the same for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{
    Acquire, EventKind, ForceRelease, Holder, LeaseId, Leave, LockName, LockOp, Outcome, Reason, Release,
    RequestRelease, RetryPolicy, TaskState, Ttl,
};
use leasehold::store::{Cursor, EventRange, ListEvents, Store};
use leasehold::testing::Player;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType};
use serde::{Deserialize, Serialize};

use super::proxy::{Fault, Proxy};

/// A proxy before the engine, a store behind the proxy, and one that goes straight to the engine.
pub(crate) struct Lab {
    pub(crate) proxy: Proxy,
    pub(crate) through: Arc<dyn Store>,
    pub(crate) straight: Arc<dyn Store>,
}

/// Longer than any client waits for an answer.
const LATE: Duration = Duration::from_secs(8);

fn player(store: &Arc<dyn Store>, lock: &str) -> Player {
    let mut player = Player::new(store.clone(), 1, LockName::new(lock).unwrap());
    player.ask.lease_id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    player.ask.ttl = Ttl::from_secs(60);
    player
}

async fn kinds(store: &Arc<dyn Store>, lock: &LockName) -> Vec<EventKind> {
    let ask = ListEvents { lock: Some(lock.clone()), span: EventRange::After(Cursor::start()), limit: 100 };
    store.locks().history(&ask).await.unwrap().items.into_iter().map(|event| event.kind).collect()
}

async fn answer_is_lost(lab: &Lab, lock: &LockName, op: &LockOp) {
    lab.proxy.set(Fault::DropReplies(1));
    let error = lab.through.locks().apply(lock, op).await.unwrap_err();
    lab.proxy.set(Fault::None);
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{op:?}: {error:?}");
    assert!(error.is_retryable(), "{op:?}: {error:?}");
}

/// Opens and warms up the connection: the next reply is the answer to the next operation.
async fn warm_up(lab: &Lab, lock: &str) {
    for _ in 0..2 {
        let one = player(&lab.through, lock);
        let lease = one.takes().await;
        assert!(matches!(one.releases(&lease).await, Outcome::Released(_)));
    }
}

/// The store does not send a release again by itself: it says that the answer is unknown, and the caller that sends it
/// again is told the truth. Done is done once.
pub(crate) async fn a_release_whose_answer_is_lost_is_unknown_and_done_once(lab: Lab) {
    warm_up(&lab, "lock").await;
    let one = player(&lab.through, "lock");
    let lease = one.takes().await;
    let release = LockOp::Release(Release { lease_id: one.id(), token: lease.token, at_least: None });
    answer_is_lost(&lab, &one.lock, &release).await;
    assert!(matches!(one.releases(&lease).await, Outcome::NotHeld(_)));
    let told = kinds(&lab.straight, &one.lock).await;
    assert_eq!(told.iter().filter(|kind| **kind == EventKind::Released).count(), 3, "{told:?}");
}

/// The same for taking a lock by force and for asking its holder to stop.
pub(crate) async fn a_force_or_an_ask_whose_answer_is_lost_is_unknown_and_done_once(lab: Lab) {
    warm_up(&lab, "lock").await;
    let one = player(&lab.through, "lock");
    let lease = one.takes().await;
    let (by, reason) = (Holder::new("ada").unwrap(), Reason::new("stuck").unwrap());
    // What the first of its kind has to do once, such as preparing a statement, is done with one that does nothing.
    let nothing =
        RequestRelease { token: Some(lease.token.next(lease.expires_at)), by: by.clone(), reason: None };
    assert!(matches!(one.apply(LockOp::RequestRelease(nothing)).await, Outcome::NotHeld(_)));
    assert!(matches!(one.renews(&lease).await, Outcome::Renewed(_)));
    let ask = RequestRelease { token: Some(lease.token), by: by.clone(), reason: Some(reason.clone()) };
    answer_is_lost(&lab, &one.lock, &LockOp::RequestRelease(ask)).await;
    let told = kinds(&lab.straight, &one.lock).await;
    assert!(told.iter().filter(|kind| **kind == EventKind::Asked).count() <= 1, "{told:?}");
    assert!(one.holds().await);
    let force = LockOp::ForceRelease(ForceRelease { token: lease.token, by, reason });
    answer_is_lost(&lab, &one.lock, &force).await;
    // Sent again by the caller: it is done, or it was.
    assert!(matches!(one.forces(lease.token).await, Outcome::NotHeld(_) | Outcome::Forced(_)));
    let told = kinds(&lab.straight, &one.lock).await;
    assert_eq!(told.iter().filter(|kind| **kind == EventKind::Forced).count(), 1, "{told:?}");
}

/// A request that reaches the engine after its client has given up and has taken it back takes no lock.
pub(crate) async fn an_acquire_that_comes_late_takes_no_lock(lab: Lab, queue: Option<Ttl>) {
    warm_up(&lab, "lock").await;
    let held = match queue {
        Some(_) => {
            let holder = player(&lab.straight, "lock");
            let lease = holder.takes().await;
            // So that the store knows what the lock is like, and goes the way of a lock with a queue.
            let one = player(&lab.through, "lock");
            one.queues().await;
            one.leaves().await;
            Some((holder, lease))
        }
        None => None,
    };
    let one = player(&lab.through, "lock");
    lab.proxy.set(Fault::HoldBack(LATE));
    let (ask, started) = (Arc::new(one.ask.clone()), Instant::now());
    let acquire = LockOp::Acquire(Acquire { ask, queue, steal_after: None });
    let asked = lab.through.locks().apply(&one.lock, &acquire).await;
    assert!(started.elapsed() < Duration::from_millis(5500), "{:?}", started.elapsed());
    // Some engines ask again within their time. What they got is given back, as is what they may have got.
    match asked {
        Ok(Outcome::Granted(lease)) => assert!(matches!(one.releases(&lease).await, Outcome::Released(_))),
        Ok(Outcome::Queued(_)) | Err(_) => assert_eq!(one.leaves().await, Outcome::Left),
        other => panic!("{other:?}"),
    }
    if let Some((holder, lease)) = held {
        assert!(matches!(holder.releases(&lease).await, Outcome::Released(_)));
    }
    assert!(started.elapsed() < LATE, "too late to prove anything: {:?}", started.elapsed());
    while !lab.proxy.held_back_are_settled() {
        assert!(started.elapsed() < 3 * LATE, "the request that was held back was never settled");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let record = lab.straight.locks().get(&one.lock).await.unwrap().unwrap();
    assert!(record.holders.is_empty(), "a request that came late has taken the lock: {record:?}");
    assert!(record.waiters.is_empty(), "a request that came late has joined the queue: {record:?}");
    let other = player(&lab.straight, "lock");
    other.takes().await;
}

/// An acquire whose connection breaks, and which reaches the engine after what has followed it on a new connection.
pub(crate) async fn an_acquire_on_a_broken_connection_takes_nothing_later(lab: Lab) {
    warm_up(&lab, "lock").await;
    let one = player(&lab.through, "lock");
    lab.proxy.set(Fault::HoldBack(Duration::from_secs(1)));
    let acquire = LockOp::Acquire(Acquire { ask: Arc::new(one.ask.clone()), queue: None, steal_after: None });
    let dropped =
        tokio::time::timeout(Duration::from_millis(300), lab.through.locks().apply(&one.lock, &acquire));
    assert!(dropped.await.is_err(), "it was answered");
    let leave = LockOp::Leave(Leave { lease_id: one.id() });
    assert_eq!(lab.through.locks().apply(&one.lock, &leave).await.unwrap(), Outcome::Left);
    let started = Instant::now();
    while !lab.proxy.held_back_are_settled() {
        assert!(started.elapsed() < LATE, "the request that was held back was never settled");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let record = lab.straight.locks().get(&one.lock).await.unwrap().unwrap();
    assert!(record.holders.is_empty(), "it took the lock after it was taken back: {record:?}");
}

#[derive(Debug, Serialize, Deserialize)]
struct Once(u32);

impl TaskType for Once {
    const QUEUE: &'static str = "once";
    const TTL: Duration = Duration::from_secs(20);
    const RETRIES: RetryPolicy =
        RetryPolicy { attempts: 1, first: Ttl::from_millis(1), longest: Ttl::from_millis(1) };
}

/// Tasks that have one attempt, a worker whose answers get lost again and again: each runs, and none fails without having
/// run. Tasks that a lost answer has leased are found by asking the store.
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

/// An engine that takes everything and answers nothing, as one that is frozen: every call ends in time, on connections that
/// were open before and on those that have to be opened.
pub(crate) async fn every_call_to_a_frozen_engine_ends_in_time(lab: Lab) {
    warm_up(&lab, "lock").await;
    let holder = player(&lab.through, "held");
    let lease = holder.takes().await;
    lab.proxy.set(Fault::BlackHole);
    for round in 0..2 {
        let (locks, tasks) = (lab.through.locks(), lab.through.tasks());
        let [a, b, c] = ["a", "b", "c"].map(|name| player(&lab.through, name));
        let acquire = |one: &Player, queue| {
            LockOp::Acquire(Acquire { ask: Arc::new(one.ask.clone()), queue, steal_after: None })
        };
        let ops = [
            ("acquire", a.lock.clone(), acquire(&a, None)),
            ("join", b.lock.clone(), acquire(&b, Some(Ttl::from_secs(5)))),
            ("leave", c.lock.clone(), LockOp::Leave(Leave { lease_id: c.id() })),
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
        for (what, lock, op) in &ops {
            calls.push((what, Box::pin(async move { locks.apply(lock, op).await.is_err() })));
        }
        if let Some(tasks) = tasks {
            let queue = leasehold::model::QueueName::new("q").unwrap();
            let worker = leasehold::model::WorkerId::from_uuid(uuid::Uuid::now_v7());
            let ask = leasehold::model::LeaseTasks::new(worker, vec![queue], 1, Ttl::from_secs(30));
            calls.push(("lease of tasks", Box::pin(async move { tasks.lease(&ask).await.is_err() })));
            calls.push(("queues", Box::pin(async move { tasks.queues().await.is_err() })));
        }
        futures_util::future::join_all(calls.into_iter().map(|(what, call)| timed(round, what, call))).await;
    }
    lab.proxy.set(Fault::None);
}

async fn timed(round: u32, what: &'static str, call: Call<'_>) {
    let started = Instant::now();
    let failed = call.await;
    let took = started.elapsed();
    assert!(took < Duration::from_millis(5700), "round {round}: {what} took {took:?}");
    // Some know the engine's time without asking for it.
    assert!(failed || what == "now", "round {round}: {what} was answered");
}

/// A call, and whether it failed.
type Call<'a> = std::pin::Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
