//! Workers whose store fails, and workers that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{Holder, LeaseTasks, QueueName, TaskEventKind, TaskState, Timestamp, Ttl, WorkerId};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, ListTasks};
use leasehold::testing::Fault;
use leasehold::{HandlerError, TaskContext, TaskType};

use super::support::{TTL, faulty, faulty_over, memory, until};
use super::worker::{Say, add, endless, state, until_it_is};

/// The only thread of the runtime does nothing but sleep, three times as long as the lease lasts.
#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_blocks_its_runtime_does_not_lose_its_task() {
    let leasehold = memory().await;
    let worker = leasehold.worker().handle(|_: TaskContext<Say>| async {
        std::thread::sleep(TTL * 3);
        Ok::<_, HandlerError>(())
    });
    let _worker = worker.start().unwrap();
    let id = add(&leasehold, "blocking").await;
    until_it_is(&leasehold, id, TaskState::Succeeded).await;
    assert_eq!(leasehold.tasks().unwrap().get(id).await.unwrap().attempt, 1);
}

#[tokio::test]
async fn a_store_that_stays_away_stops_the_handler_before_the_lease_can_end() {
    let (store, leasehold, other) = faulty();
    let at_it = Arc::new(AtomicU32::new(0));
    let _worker = endless(&leasehold, &at_it);
    let id = add(&other, "long").await;
    until("it runs", async || at_it.load(Ordering::SeqCst) == 1).await;
    store.from_now_on(Fault::LoseRequest);
    until("its handler is gone", async || at_it.load(Ordering::SeqCst) == 0).await;
    // Somebody else takes over.
    until("its lease has run out", async || other.tasks().unwrap().recover(10).await.unwrap().returned == 1)
        .await;
    assert_ne!(state(&other, id).await, TaskState::Running);
    store.from_now_on(Fault::None);
    until("the worker goes on by itself", async || at_it.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_task_that_somebody_else_was_given_is_dropped() {
    let (_, leasehold, other) = faulty();
    let at_it = Arc::new(AtomicU32::new(0));
    let _worker = endless(&leasehold, &at_it);
    let id = add(&other, "long").await;
    until("it runs", async || at_it.load(Ordering::SeqCst) == 1).await;
    // As if it had been paused for so long that its lease ran out.
    let task = other.tasks().unwrap().get(id).await.unwrap();
    assert_eq!(task.state, TaskState::Running);
    let settle = leasehold::model::Settle {
        id,
        token: task.token,
        verdict: leasehold::model::AttemptResult::Snooze(leasehold::model::Ttl::from_secs(60)),
    };
    other.store().tasks().unwrap().settle(&[settle]).await.unwrap();
    until("its handler is gone", async || at_it.load(Ordering::SeqCst) == 0).await;
    assert_eq!(state(&other, id).await, TaskState::Scheduled);
}

/// A task whose lease outlasts every stall of a busy machine: a second attempt is an error of the worker.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Once(u32);

impl TaskType for Once {
    const QUEUE: &'static str = "once";
    const TTL: Duration = Duration::from_secs(60);
}

#[tokio::test]
async fn lost_answers_lose_no_task_and_settle_none_twice() {
    let (store, leasehold, other) = faulty();
    let runs = Arc::new(AtomicU32::new(0));
    let worker =
        leasehold.worker().slots(4).handle_with(runs.clone(), |_: TaskContext<Once>, runs| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, HandlerError>(())
        });
    let all: Vec<Once> = (0..40).map(Once).collect();
    let ids = other.enqueue_all(&all).await.unwrap();
    let faults = [
        Fault::None,
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::None,
        Fault::Delay(Duration::from_millis(5)),
    ];
    store.plan(faults.iter().copied().cycle().take(60));
    let worker = worker.start().unwrap();
    for id in &ids {
        until_it_is(&other, *id, TaskState::Succeeded).await;
    }
    worker.stop(Duration::from_secs(5)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 40, "no handler ran twice");
    for id in ids {
        let task = other.tasks().unwrap().get(id).await.unwrap();
        assert_eq!((task.attempt, task.events.len(), task.version), (1, 0, 3));
    }
}

/// A batch that is too large for the store is settled in parts, and a result that it never takes fails its own task only.
#[tokio::test]
async fn results_that_are_too_large_together_are_settled_one_after_the_other() {
    let (store, leasehold, other) = faulty();
    store.settles_at_most(300 << 10);
    let together = Arc::new(tokio::sync::Barrier::new(40));
    let worker =
        leasehold.worker().slots(40).handle_with(together, |task: TaskContext<Say>, together| async move {
            together.wait().await;
            let kibibytes = if task.work.text == "0" { 301 } else { 100 };
            Ok::<_, HandlerError>("x".repeat(kibibytes << 10))
        });
    let all: Vec<Say> = (0..40).map(|number| Say { text: number.to_string() }).collect();
    let ids = other.enqueue_all(&all).await.unwrap();
    let worker = worker.start().unwrap();
    for id in &ids[1..] {
        until_it_is(&other, *id, TaskState::Succeeded).await;
    }
    until_it_is(&other, ids[0], TaskState::Failed).await;
    let failed = other.tasks().unwrap().get(ids[0]).await.unwrap();
    let why = failed.error.unwrap().to_string();
    assert!(why.starts_with("its result cannot be kept: a call of "), "{why}");
    worker.stop(Duration::from_secs(5)).await;
}

/// The store comes back before it has ended the lease: it need not wait for its end. The store's clock stands still, so
/// that the lease cannot end there however busy the machine is; the worker counts the time by its own clock.
#[tokio::test]
async fn a_lease_that_was_lost_by_time_is_given_back() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let (store, leasehold, other) = faulty_over(MemoryStore::with_clock(clock));
    let at_it = Arc::new(AtomicU32::new(0));
    let _worker = endless(&leasehold, &at_it);
    let id = add(&other, "long").await;
    until("it runs", async || at_it.load(Ordering::SeqCst) == 1).await;
    let first = other.tasks().unwrap().get(id).await.unwrap();
    // Nobody recovers here: what comes back was given back.
    store.from_now_on(Fault::LoseRequest);
    until("its handler is gone", async || at_it.load(Ordering::SeqCst) == 0).await;
    store.from_now_on(Fault::None);
    until("it runs again", async || {
        let task = other.tasks().unwrap().get(id).await.unwrap();
        task.state == TaskState::Running && task.token > first.token
    })
    .await;
    let task = other.tasks().unwrap().get(id).await.unwrap();
    assert!(task.events.iter().all(|event| event.kind != TaskEventKind::Expired), "{:?}", task.events);
}

/// One of its askings reached the store only after the worker had given it up: it cannot know until when that lease
/// lasts. Here it lasts for an hour, so that a sign of life, which is for one ttl, can be told from it.
#[tokio::test]
async fn a_lease_that_nobody_knew_of_is_begun_with_a_sign_of_life() {
    let (store, leasehold, other) = faulty();
    let (tell, told) = tokio::sync::watch::channel(None);
    let seen = (other.clone(), Arc::new(tell));
    let worker = leasehold.worker().handle_with(seen, |task: TaskContext<Say>, (other, tell)| async move {
        if task.work.text == "late" {
            let task = other.tasks()?.get(task.id()).await?;
            tell.send_replace(Some(task));
        }
        Ok::<_, HandlerError>(())
    });
    let worker = worker.start().unwrap();
    until("it is known", async || !other.tasks().unwrap().workers().await.unwrap().is_empty()).await;
    store.from_now_on(Fault::LoseRequest);
    add(&other, "late").await;
    let hour = Ttl::from_secs(3600);
    let queues = vec![QueueName::new(Say::QUEUE).unwrap()];
    let ask = LeaseTasks::new(worker.id(), queues, 1, hour);
    assert_eq!(other.store().tasks().unwrap().lease(&ask).await.unwrap().tasks.len(), 1);
    // Others wake it, so that it asks, now and then misses the answer, and looks for what it was given.
    let away = AtomicBool::new(false);
    until("it is begun", async || {
        let fault = if away.fetch_xor(true, Ordering::SeqCst) { Fault::LoseRequest } else { Fault::None };
        store.from_now_on(fault);
        add(&other, "another").await;
        told.borrow().is_some()
    })
    .await;
    let task = told.borrow().clone().unwrap();
    assert_eq!((task.state, task.attempt), (TaskState::Running, 1));
    assert!(task.lease_expires_at < task.leased_at.map(|at| at.plus(hour)), "no sign of life for {task:?}");
}

#[tokio::test]
async fn a_worker_that_vanishes_is_replaced_within_its_ttl() {
    let leasehold = memory().await;
    let at_it = Arc::new(AtomicU32::new(0));
    let runtime = runtime();
    let worker = {
        let _there = runtime.enter();
        endless(&leasehold, &at_it)
    };
    let id = add(&leasehold, "long").await;
    until("it runs", async || at_it.load(Ordering::SeqCst) == 1).await;
    runtime.shutdown_background();
    until("nobody is at it", async || at_it.load(Ordering::SeqCst) == 0).await;
    let second = endless(&leasehold, &at_it);
    until("somebody else is at it", async || at_it.load(Ordering::SeqCst) == 1).await;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!((task.worker, task.attempt), (Some(second.id()), 2));
    let waited = task.leased_at.unwrap().since(task.events[0].leased_at.unwrap());
    assert!(waited < TTL * 3, "recovered after {waited:?}");
    drop(worker);
}

/// A runtime that is gone in the middle of it, as if its process were.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[tokio::test]
async fn a_crash_fails_no_task_that_was_only_fetched_ahead() {
    let leasehold = memory().await;
    let at_it = Arc::new(AtomicU32::new(0));
    let all: Vec<Say> = (0..30).map(|number| Say { text: number.to_string() }).collect();
    leasehold.enqueue_all(&all).await.unwrap();
    let runtime = runtime();
    let worker = {
        let _there = runtime.enter();
        let worker = leasehold.worker().slots(2).prefetch(20);
        let worker = worker.handle_with(at_it.clone(), |_: TaskContext<Say>, at_it| async move {
            at_it.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<(), HandlerError>>().await
        });
        worker.start().unwrap()
    };
    let tasks = leasehold.tasks().unwrap();
    let running = ListTasks { state: Some(TaskState::Running), ..ListTasks::default() };
    until("it has taken some ahead", async || tasks.list(&running).await.unwrap().items.len() == 22).await;
    until("two run", async || at_it.load(Ordering::SeqCst) == 2).await;
    runtime.shutdown_background();
    let ended = AtomicU32::new(0);
    until("all leases have run out", async || {
        let recovered = tasks.recover(100).await.unwrap().expired();
        ended.fetch_add(recovered, Ordering::SeqCst) + recovered == 22
    })
    .await;
    let all = tasks.list(&ListTasks { limit: 100, ..ListTasks::default() }).await.unwrap().items;
    let used = all.iter().filter(|task| task.attempt > 0).count();
    assert_eq!((all.len(), used), (30, 2), "only what was started has used an attempt");
    drop(worker);
}

#[tokio::test]
async fn a_task_that_runs_alone_waits_until_its_worker_has_nothing_else() {
    let leasehold = memory().await;
    let tasks = leasehold.tasks().unwrap();
    // Its first worker was lost, and it has one attempt left.
    let alone = add(&leasehold, "alone").await;
    let (queues, short) = (vec![QueueName::new(Say::QUEUE).unwrap()], Ttl::from_millis(5));
    let ask = LeaseTasks::new(WorkerId::from_uuid(uuid::Uuid::from_u128(9)), queues, 1, short);
    assert_eq!(leasehold.store().tasks().unwrap().lease(&ask).await.unwrap().tasks.len(), 1);
    until("its lease has run out", async || tasks.recover(10).await.unwrap().returned == 1).await;

    let (busy, beside) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let release = Arc::new(tokio::sync::Notify::new());
    let seen = (busy.clone(), beside.clone(), release.clone());
    let worker = leasehold.worker().slots(4).prefetch(4).handle_with(
        seen,
        |task: TaskContext<Say>, (busy, beside, release)| async move {
            if task.work.text == "alone" {
                beside.fetch_max(busy.load(Ordering::SeqCst), Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                beside.fetch_max(busy.load(Ordering::SeqCst), Ordering::SeqCst);
                return Ok::<_, HandlerError>(());
            }
            busy.fetch_add(1, Ordering::SeqCst);
            if task.work.text == "slow" {
                release.notified().await;
            }
            busy.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        },
    );
    tasks.pause(&QueueName::new(Say::QUEUE).unwrap(), Holder::new("test").unwrap(), None).await.unwrap();
    let worker = worker.start().unwrap();
    let slow = leasehold.enqueue(&Say { text: "slow".to_owned() }).priority(9).await.unwrap().id;
    tasks.resume(&QueueName::new(Say::QUEUE).unwrap()).await.unwrap();
    until_it_is(&leasehold, slow, TaskState::Running).await;
    until_it_is(&leasehold, alone, TaskState::Running).await;
    assert!(!tasks.get(alone).await.unwrap().begun, "it is held, and waits");
    let later = add(&leasehold, "later").await;
    release.notify_one();
    until_it_is(&leasehold, alone, TaskState::Succeeded).await;
    until_it_is(&leasehold, later, TaskState::Succeeded).await;
    assert_eq!(beside.load(Ordering::SeqCst), 0, "something ran beside it");
    worker.stop(Duration::from_secs(5)).await;
}
