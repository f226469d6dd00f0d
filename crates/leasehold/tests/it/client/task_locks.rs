//! Tasks whose lock is held: they wait in the queue of the lock, without a slot and without calls
//! of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{RetryPolicy, TaskId, TaskState};
use leasehold::testing::Fault;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType, Worker};
use serde::{Deserialize, Serialize};

use super::support::{TTL, faulty, memory, name, until};
use super::worker::{Say, add, state, until_state};

fn worker(leasehold: &Leasehold, slots: u32) -> Worker {
    let worker = leasehold.worker().slots(slots);
    worker.handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start().unwrap()
}

async fn add_locked(leasehold: &Leasehold, lock: &str) -> TaskId {
    leasehold.enqueue(&Say { text: lock.to_owned() }).lock(lock).await.unwrap().id
}

async fn waiters(leasehold: &Leasehold, lock: &str) -> usize {
    leasehold.locks().status(&name(lock)).await.unwrap().waiters.len()
}

#[tokio::test]
async fn a_task_whose_lock_is_held_keeps_its_lease_and_occupies_no_slot() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let _worker = worker(&leasehold, 1);
    let locked = add_locked(&leasehold, "gpu").await;
    until("it waits in the queue of the lock", async || waiters(&leasehold, "gpu").await == 1).await;
    for number in 0..5 {
        let plain = add(&leasehold, &format!("plain {number}")).await;
        until_state(&leasehold, plain, TaskState::Succeeded).await;
    }
    // Longer than the TTL: heartbeats renew the lease.
    tokio::time::sleep(TTL * 2).await;
    let task = leasehold.tasks().unwrap().get(locked).await.unwrap();
    assert_eq!((task.state, task.version, task.events.len()), (TaskState::Running, 2, 0));
    guard.release().await.unwrap();
    until_state(&leasehold, locked, TaskState::Succeeded).await;
    let task = leasehold.tasks().unwrap().get(locked).await.unwrap();
    assert_eq!((task.attempt, task.events.len()), (1, 0), "waiting does not count as an attempt");
}

/// A task with a single attempt is never prefetched: a worker leases it only if a slot is free.
#[tokio::test]
async fn a_task_with_a_single_attempt_does_not_wait_for_the_lock_of_another() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let _worker = worker(&leasehold, 1);
    let locked = add_locked(&leasehold, "gpu").await;
    until("it waits in the queue of the lock", async || waiters(&leasehold, "gpu").await == 1).await;
    let once = RetryPolicy { attempts: 1, ..Say::RETRIES };
    for number in 0..5 {
        let plain = leasehold.enqueue(&Say { text: format!("plain {number}") }).retries(once);
        until_state(&leasehold, plain.await.unwrap().id, TaskState::Succeeded).await;
    }
    guard.release().await.unwrap();
    until_state(&leasehold, locked, TaskState::Succeeded).await;
}

/// Each slot of a worker runs one handler at a time, also when a lock is granted while all slots
/// are busy.
#[tokio::test]
async fn a_task_that_has_its_lock_waits_for_a_slot() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let (active, most, go) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let seen = Arc::new((active, most, go));
    let worker =
        leasehold.worker().slots(1).handle_with(seen.clone(), |task: TaskContext<Say>, seen| async move {
            let (active, most, go) = &*seen;
            most.fetch_max(active.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            while task.payload.text == "long" && !go.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            active.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, HandlerError>(())
        });
    let _worker = worker.start().unwrap();
    let locked = add_locked(&leasehold, "gpu").await;
    until("it waits in the queue of the lock", async || waiters(&leasehold, "gpu").await == 1).await;
    let long = add(&leasehold, "long").await;
    until_state(&leasehold, long, TaskState::Running).await;
    guard.release().await.unwrap();
    until("it has the lock", async || waiters(&leasehold, "gpu").await == 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(state(&leasehold, locked).await, TaskState::Running);
    seen.2.store(true, Ordering::SeqCst);
    until_state(&leasehold, locked, TaskState::Succeeded).await;
    assert_eq!(seen.1.load(Ordering::SeqCst), 1, "one handler at a time");
}

/// Three other holders acquire the lock repeatedly in the order of the queue, and so does the task.
#[tokio::test]
async fn a_task_waits_fairly_among_other_waiters_for_its_lock() {
    let leasehold = memory().await;
    let (grants, stopped) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (leasehold, grants, stopped) = (leasehold.clone(), grants.clone(), stopped.clone());
        others.spawn(async move {
            while !stopped.load(Ordering::SeqCst) {
                let guard = leasehold.lock("gpu").wait(Duration::from_secs(20)).acquire().await.unwrap();
                grants.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                guard.release().await.unwrap();
            }
        });
    }
    until("several grants", async || grants.load(Ordering::SeqCst) > 5).await;
    let _worker = worker(&leasehold, 1);
    let locked = add_locked(&leasehold, "gpu").await;
    until("it was leased", async || state(&leasehold, locked).await != TaskState::Pending).await;
    let before = grants.load(Ordering::SeqCst);
    until_state(&leasehold, locked, TaskState::Succeeded).await;
    let passed = grants.load(Ordering::SeqCst) - before;
    stopped.store(true, Ordering::SeqCst);
    assert!(passed <= 10, "{passed} other grants before it");
    others.join_all().await;
}

#[tokio::test]
async fn a_thousand_tasks_blocked_by_a_held_lock_are_not_touched() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..1000 {
        ids.push(add_locked(&leasehold, "gpu").await);
    }
    let _worker = worker(&leasehold, 1);
    until("the first waits in the queue of the lock", async || waiters(&leasehold, "gpu").await == 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tasks = leasehold.tasks().unwrap();
    for (number, id) in ids.iter().enumerate() {
        let task = tasks.get(*id).await.unwrap();
        let expected = if number == 0 { (TaskState::Running, 2) } else { (TaskState::Blocked, 1) };
        assert_eq!((task.state, task.version), expected, "task {number}");
        assert!(task.events.is_empty(), "task {number}");
    }
    assert_eq!(waiters(&leasehold, "gpu").await, 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_stopping_worker_returns_tasks_that_wait_for_a_lock() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let worker = worker(&leasehold, 1);
    let locked = add_locked(&leasehold, "gpu").await;
    until("it waits in the queue of the lock", async || waiters(&leasehold, "gpu").await == 1).await;
    let ready_at = leasehold.tasks().unwrap().get(locked).await.unwrap().ready_at;
    let started = Instant::now();
    worker.stop(Duration::from_secs(20)).await;
    assert!(started.elapsed() < Duration::from_secs(10), "it does not wait for the lock");
    let task = leasehold.tasks().unwrap().get(locked).await.unwrap();
    assert_eq!((task.state, task.attempt, task.ready_at), (TaskState::Pending, 0, ready_at));
    until("its ticket is gone", async || waiters(&leasehold, "gpu").await == 0).await;
    guard.release().await.unwrap();
}

#[derive(Serialize, Deserialize)]
struct Whisper;

impl TaskType for Whisper {
    const QUEUE: &'static str = "whisper";
    const TTL: Duration = TTL;
}

/// A task of a queue without a worker, or of a paused queue, blocks no other task; between queues
/// with workers the lock decides.
#[tokio::test]
async fn a_lock_is_shared_by_queues() {
    let leasehold = memory().await;
    let idle = leasehold.enqueue(&Whisper).lock("gpu").await.unwrap().id;
    let _worker = worker(&leasehold, 2);
    let locked = add_locked(&leasehold, "gpu").await;
    until_state(&leasehold, locked, TaskState::Succeeded).await;
    assert_eq!(state(&leasehold, idle).await, TaskState::Pending);

    let both = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let work = |both: Arc<(AtomicU32, AtomicU32)>| async move {
        both.1.fetch_max(both.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        both.0.fetch_sub(1, Ordering::SeqCst);
        Ok::<_, HandlerError>(())
    };
    let other = leasehold.worker().handle_with(both.clone(), move |_: TaskContext<Whisper>, both| work(both));
    let _other = other.start().unwrap();
    until_state(&leasehold, idle, TaskState::Succeeded).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(leasehold.enqueue(&Whisper).lock("gpu").await.unwrap().id);
        ids.push(add_locked(&leasehold, "gpu").await);
    }
    for id in ids {
        until_state(&leasehold, id, TaskState::Succeeded).await;
    }
    assert_eq!(both.1.load(Ordering::SeqCst), 1);
}

/// A task that was leased while lock requests fail is not lost.
#[tokio::test]
async fn a_failed_lock_request_is_repeated() {
    let (store, leasehold, other) = faulty();
    let locked = add_locked(&other, "gpu").await;
    // The lease comes through; the request for the lock and its repetitions do not.
    store.plan([Fault::None, Fault::LoseRequest, Fault::LoseRequest, Fault::LoseRequest, Fault::LoseRequest]);
    let _worker = worker(&leasehold, 1);
    until_state(&other, locked, TaskState::Succeeded).await;
}
