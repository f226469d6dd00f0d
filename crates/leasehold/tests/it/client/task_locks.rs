//! Tasks whose lock is held by others: they wait in the queue of the lock, without a slot, and cost nothing meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{TaskId, TaskState};
use leasehold::testing::Fault;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType, Worker};
use serde::{Deserialize, Serialize};

use super::support::{TTL, faulty, memory, name, until};
use super::worker::{Say, add, state, until_it_is};

fn worker(leasehold: &Leasehold, slots: u32) -> Worker {
    let worker = leasehold.worker().slots(slots);
    worker.handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start().unwrap()
}

async fn add_locked(leasehold: &Leasehold, lock: &str) -> TaskId {
    leasehold.enqueue(&Say { text: lock.to_owned() }).lock(lock).await.unwrap().id
}

async fn waiters(leasehold: &Leasehold, lock: &str) -> usize {
    leasehold.status(&name(lock)).await.unwrap().waiters.len()
}

#[tokio::test]
async fn a_task_whose_lock_is_held_waits_where_it_is_and_occupies_no_slot() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let _worker = worker(&leasehold, 1);
    let locked = add_locked(&leasehold, "gpu").await;
    until("it waits in the queue of the lock", async || waiters(&leasehold, "gpu").await == 1).await;
    for number in 0..5 {
        let plain = add(&leasehold, &format!("plain {number}")).await;
        until_it_is(&leasehold, plain, TaskState::Succeeded).await;
    }
    // Longer than its lease: heartbeats keep it.
    tokio::time::sleep(TTL * 2).await;
    let task = leasehold.tasks().unwrap().get(locked).await.unwrap();
    assert_eq!((task.state, task.version, task.events.len()), (TaskState::Running, 2, 0));
    guard.release().await.unwrap();
    until_it_is(&leasehold, locked, TaskState::Succeeded).await;
    let task = leasehold.tasks().unwrap().get(locked).await.unwrap();
    assert_eq!((task.attempt, task.events.len()), (1, 0), "waiting was no attempt");
}

/// Of a worker's slots each runs one handler at a time, also when a lock is granted while all of them are busy.
#[tokio::test]
async fn a_task_that_has_its_lock_waits_for_a_slot() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let (at_it, most, go) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let seen = Arc::new((at_it, most, go));
    let worker =
        leasehold.worker().slots(1).handle_with(seen.clone(), |task: TaskContext<Say>, seen| async move {
            let (at_it, most, go) = &*seen;
            most.fetch_max(at_it.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            while task.work.text == "long" && !go.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            at_it.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, HandlerError>(())
        });
    let _worker = worker.start().unwrap();
    let locked = add_locked(&leasehold, "gpu").await;
    until("it waits in the queue of the lock", async || waiters(&leasehold, "gpu").await == 1).await;
    let long = add(&leasehold, "long").await;
    until_it_is(&leasehold, long, TaskState::Running).await;
    guard.release().await.unwrap();
    until("it has the lock", async || waiters(&leasehold, "gpu").await == 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(state(&leasehold, locked).await, TaskState::Running);
    seen.2.store(true, Ordering::SeqCst);
    until_it_is(&leasehold, locked, TaskState::Succeeded).await;
    assert_eq!(seen.1.load(Ordering::SeqCst), 1, "one handler at a time");
}

/// Three others take the lock again and again, each in its turn: so does the task.
#[tokio::test]
async fn a_task_takes_its_turn_among_others_who_wait_for_its_lock() {
    let leasehold = memory().await;
    let (turns, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (leasehold, turns, over) = (leasehold.clone(), turns.clone(), over.clone());
        others.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let guard = leasehold.lock("gpu").wait(Duration::from_secs(20)).acquire().await.unwrap();
                turns.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                guard.release().await.unwrap();
            }
        });
    }
    until("they take turns", async || turns.load(Ordering::SeqCst) > 5).await;
    let _worker = worker(&leasehold, 1);
    let locked = add_locked(&leasehold, "gpu").await;
    until("it was leased", async || state(&leasehold, locked).await != TaskState::Pending).await;
    let before = turns.load(Ordering::SeqCst);
    until_it_is(&leasehold, locked, TaskState::Succeeded).await;
    let passed = turns.load(Ordering::SeqCst) - before;
    over.store(true, Ordering::SeqCst);
    assert!(passed <= 10, "{passed} others went before it");
    others.join_all().await;
}

#[tokio::test]
async fn a_thousand_tasks_behind_a_held_lock_cost_nothing() {
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
async fn a_worker_that_ends_gives_back_what_waits_for_a_lock() {
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

/// A task of a queue that nobody serves, or that is paused, is in nobody's way; between queues that are served the lock decides.
#[tokio::test]
async fn a_lock_is_shared_by_queues() {
    let leasehold = memory().await;
    let idle = leasehold.enqueue(&Whisper).lock("gpu").await.unwrap().id;
    let _worker = worker(&leasehold, 2);
    let locked = add_locked(&leasehold, "gpu").await;
    until_it_is(&leasehold, locked, TaskState::Succeeded).await;
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
    until_it_is(&leasehold, idle, TaskState::Succeeded).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(leasehold.enqueue(&Whisper).lock("gpu").await.unwrap().id);
        ids.push(add_locked(&leasehold, "gpu").await);
    }
    for id in ids {
        until_it_is(&leasehold, id, TaskState::Succeeded).await;
    }
    assert_eq!(both.1.load(Ordering::SeqCst), 1);
}

/// A task that the store gave while it could not be asked for a lock is not lost.
#[tokio::test]
async fn a_lock_that_cannot_be_asked_for_is_asked_for_again() {
    let (store, leasehold, other) = faulty();
    let locked = add_locked(&other, "gpu").await;
    // The lease comes through; the request for the lock and its repetitions do not.
    store.plan([Fault::None, Fault::LoseRequest, Fault::LoseRequest, Fault::LoseRequest, Fault::LoseRequest]);
    let _worker = worker(&leasehold, 1);
    until_it_is(&other, locked, TaskState::Succeeded).await;
}
