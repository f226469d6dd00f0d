//! Workers whose store fails, and workers that crash.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold::model::{
    Holder, LeaseTasks, Payload, QueueName, RetryPolicy, TaskEventKind, TaskId, TaskState, Timestamp, Ttl,
    WorkerId,
};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, ListTasks};
use leasehold::testing::Fault;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType};

use super::support::{TTL, faulty, faulty_over, memory, name, until};
use super::worker::{Say, add, endless, state, until_state};

/// The only thread of the runtime is blocked for three times the TTL.
#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_blocks_its_runtime_does_not_lose_its_task() {
    let leasehold = memory().await;
    let worker = leasehold.worker().handle(|_: TaskContext<Say>| async {
        std::thread::sleep(TTL * 3);
        Ok::<_, HandlerError>(())
    });
    let _worker = worker.start().unwrap();
    let id = add(&leasehold, "blocking").await;
    until_state(&leasehold, id, TaskState::Succeeded).await;
    assert_eq!(leasehold.tasks().unwrap().get(id).await.unwrap().attempt, 1);
}

#[tokio::test]
async fn an_unavailable_store_cancels_the_handler_before_the_lease_ends() {
    let (store, leasehold, other) = faulty();
    let active = Arc::new(AtomicU32::new(0));
    let _worker = endless(&leasehold, &active);
    let id = add(&other, "long").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    store.from_now_on(Fault::LoseRequest);
    until("its handler has ended", async || active.load(Ordering::SeqCst) == 0).await;
    // Another client recovers the task.
    until("its lease has expired", async || other.tasks().unwrap().recover(10).await.unwrap().returned == 1)
        .await;
    assert_ne!(state(&other, id).await, TaskState::Running);
    store.from_now_on(Fault::None);
    until("the worker continues by itself", async || active.load(Ordering::SeqCst) == 1).await;
}

/// The first attempt blocks its thread, so that it cannot be dropped when its lease is lost. The worker gets
/// the task again, and renews its new lease while it waits for the end of that attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_task_that_is_leased_again_starts_after_the_end_of_its_lost_attempt() {
    let (store, leasehold, other) = faulty();
    let (end, may_end) = std::sync::mpsc::channel::<()>();
    let seen = Arc::new((AtomicU32::new(0), AtomicU32::new(0), Mutex::new(may_end)));
    let worker = leasehold.worker().handle_with(seen.clone(), |task: TaskContext<Say>, seen| async move {
        let (active, most, may_end) = &*seen;
        most.fetch_max(active.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        if task.attempt() == 1 {
            // Leaves the other tasks of the runtime to another thread.
            let _ended = tokio::task::block_in_place(|| may_end.lock().unwrap().recv());
        }
        active.fetch_sub(1, Ordering::SeqCst);
        Ok::<_, HandlerError>(())
    });
    let _worker = worker.start().unwrap();
    // After one lost lease it has more than one attempt left, so it does not run alone.
    let retries = RetryPolicy { attempts: 5, ..Say::RETRIES };
    let id = other.enqueue(&Say { text: "blocking".to_owned() }).retries(retries).await.unwrap().id;
    until("it runs", async || seen.0.load(Ordering::SeqCst) == 1).await;
    let tasks = other.tasks().unwrap();
    let first = tasks.get(id).await.unwrap().token;
    store.from_now_on(Fault::LoseRequest);
    until("its lease has expired", async || tasks.recover(10).await.unwrap().returned == 1).await;
    store.from_now_on(Fault::None);
    until("it is leased again", async || {
        let task = tasks.get(id).await.unwrap();
        task.state == TaskState::Running && task.token > first
    })
    .await;
    let expires_at = tasks.get(id).await.unwrap().lease_expires_at;
    let is_renewed = async || tasks.get(id).await.unwrap().lease_expires_at > expires_at;
    until("its new lease is renewed", is_renewed).await;
    assert_eq!(seen.1.load(Ordering::SeqCst), 1, "it waits");
    drop(end);
    until_state(&other, id, TaskState::Succeeded).await;
    assert_eq!(seen.1.load(Ordering::SeqCst), 1, "one attempt at a time");
}

#[tokio::test]
async fn a_task_that_another_worker_settled_is_cancelled() {
    let (_, leasehold, other) = faulty();
    let active = Arc::new(AtomicU32::new(0));
    let _worker = endless(&leasehold, &active);
    let id = add(&other, "long").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    // As if the worker had been paused until its lease expired.
    let task = other.tasks().unwrap().get(id).await.unwrap();
    assert_eq!(task.state, TaskState::Running);
    let settle = leasehold::model::Settle {
        id,
        token: task.token,
        result: leasehold::model::AttemptResult::Snooze(leasehold::model::Ttl::from_secs(60)),
    };
    other.store().tasks().unwrap().settle(&[settle]).await.unwrap();
    until("its handler has ended", async || active.load(Ordering::SeqCst) == 0).await;
    assert_eq!(state(&other, id).await, TaskState::Scheduled);
}

/// Task whose lease outlasts every stall of a busy machine: a second attempt is an error of the
/// worker.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Once(u32);

impl TaskType for Once {
    const QUEUE: &'static str = "once";
    const TTL: Duration = Duration::from_mins(1);
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
        until_state(&other, *id, TaskState::Succeeded).await;
    }
    worker.stop(Duration::from_secs(5)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 40, "no handler ran twice");
    for id in ids {
        let task = other.tasks().unwrap().get(id).await.unwrap();
        assert_eq!((task.attempt, task.events.len(), task.version), (1, 0, 3));
    }
}

/// The store leases a task with a single attempt, which counts from then on, and its answer takes some time.
/// Meanwhile another task gets its lock.
#[tokio::test]
async fn a_task_that_gets_its_lock_does_not_take_the_slot_of_a_leased_task() {
    let (store, leasehold, other) = faulty();
    let guard = other.lock("gpu").acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let worker =
        leasehold.worker().slots(1).handle_with(order.clone(), |task: TaskContext<Once>, order| async move {
            order.lock().unwrap().push(task.payload.0);
            Ok::<_, HandlerError>(())
        });
    let _worker = worker.start().unwrap();
    let locked = other.enqueue(&Once(1)).lock("gpu").await.unwrap().id;
    let status = async || other.locks().status("gpu").await.unwrap();
    until("it waits for its lock", async || status().await.waiters.len() == 1).await;
    store.from_now_on(Fault::Delay(Duration::from_secs(1)));
    let once = RetryPolicy { attempts: 1, ..RetryPolicy::DEFAULT };
    let plain = other.enqueue(&Once(2)).retries(once).await.unwrap().id;
    until_state(&other, plain, TaskState::Running).await;
    guard.release().await.unwrap();
    until_state(&other, plain, TaskState::Succeeded).await;
    store.from_now_on(Fault::None);
    until_state(&other, locked, TaskState::Succeeded).await;
    assert_eq!(*order.lock().unwrap(), [2, 1]);
}

/// Time for which the store of the next two tests refuses requests: longer than the tests run.
const REFUSED: Fault = Fault::RefuseFor(Duration::from_mins(10));

#[tokio::test]
async fn a_worker_leases_no_tasks_while_the_store_refuses_requests() {
    let (store, leasehold, other) = faulty();
    add(&other, "later").await;
    store.from_now_on(REFUSED);
    let worker = endless(&leasehold, &Arc::default());
    until("it has tried once", async || store.task_calls().0 == 1).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(store.task_calls(), (1, 0));
    store.from_now_on(Fault::None);
    let stopped = tokio::time::timeout(Duration::from_secs(20), worker.stop(Duration::ZERO)).await;
    assert!(stopped.is_ok(), "a worker that waits for its store can be stopped");
}

#[tokio::test]
async fn a_worker_settles_nothing_while_the_store_refuses_requests() {
    let (store, leasehold, other) = faulty();
    let worker = leasehold.worker().handle_with(store.clone(), |_: TaskContext<Once>, store| async move {
        store.from_now_on(REFUSED);
        Ok::<_, HandlerError>(())
    });
    other.enqueue(&Once(1)).await.unwrap();
    let worker = worker.start().unwrap();
    until("it has tried once", async || store.task_calls().1 == 1).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(store.task_calls().1, 1);
    store.from_now_on(Fault::None);
    let stopped = tokio::time::timeout(Duration::from_secs(20), worker.stop(Duration::ZERO)).await;
    assert!(stopped.is_ok(), "a worker that waits for its store can be stopped");
    assert_eq!(store.task_calls().1, 2, "it tries a last time");
}

/// A batch that is too large for the store is settled in parts, and a result that the store never
/// accepts fails only its own task.
#[tokio::test]
async fn results_too_large_for_one_call_are_settled_in_parts() {
    let (store, leasehold, other) = faulty();
    store.settles_at_most(300 << 10);
    let together = Arc::new(tokio::sync::Barrier::new(40));
    let worker =
        leasehold.worker().slots(40).handle_with(together, |task: TaskContext<Say>, together| async move {
            together.wait().await;
            let kibibytes = if task.payload.text == "0" { 301 } else { 100 };
            Ok::<_, HandlerError>("x".repeat(kibibytes << 10))
        });
    let all: Vec<Say> = (0..40).map(|number| Say { text: number.to_string() }).collect();
    let ids = other.enqueue_all(&all).await.unwrap();
    let worker = worker.start().unwrap();
    for id in &ids[1..] {
        until_state(&other, *id, TaskState::Succeeded).await;
    }
    until_state(&other, ids[0], TaskState::Failed).await;
    let failed = other.tasks().unwrap().get(ids[0]).await.unwrap();
    let error = failed.error.unwrap().to_string();
    assert!(error.starts_with("its result cannot be kept: a call of "), "{error}");
    worker.stop(Duration::from_secs(5)).await;
}

/// The store is available again before the lease has expired there: the worker returns the task,
/// and other workers need not wait for the expiry. The clock of the store stands still, so that the
/// lease cannot expire there however busy the machine is; the worker counts the time by its own
/// clock.
#[tokio::test]
async fn a_lease_that_expired_locally_ends_an_attempt() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let (store, leasehold, other) = faulty_over(MemoryStore::with_clock(clock));
    let active = Arc::new(AtomicU32::new(0));
    let _worker = endless(&leasehold, &active);
    let id = add(&other, "long").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    let first = other.tasks().unwrap().get(id).await.unwrap();
    // No process recovers tasks here, and no time passes in the store: only the worker ends the attempt.
    store.from_now_on(Fault::LoseRequest);
    until("its handler has ended", async || active.load(Ordering::SeqCst) == 0).await;
    store.from_now_on(Fault::None);
    until_state(&other, id, TaskState::Scheduled).await;
    let task = other.tasks().unwrap().get(id).await.unwrap();
    assert_eq!((task.attempt, task.token), (1, first.token), "the attempt counts");
    let kinds: Vec<_> = task.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [TaskEventKind::Failed]);
}

/// A lease request reached the store after the worker had given it up: the worker cannot know when
/// that lease expires. Here it lasts for an hour, so that a heartbeat, which sets one TTL, can be
/// distinguished from it.
#[tokio::test]
async fn an_unknown_lease_starts_with_a_heartbeat() {
    let (store, leasehold, other) = faulty();
    let (report, reported) = tokio::sync::watch::channel(None);
    let seen = (other.clone(), Arc::new(report));
    let worker = leasehold.worker().handle_with(seen, |task: TaskContext<Say>, (other, report)| async move {
        if task.payload.text == "late" {
            let task = other.tasks()?.get(task.id()).await?;
            report.send_replace(Some(task));
        }
        Ok::<_, HandlerError>(())
    });
    let worker = worker.start().unwrap();
    until("it is listed", async || !other.tasks().unwrap().workers().await.unwrap().is_empty()).await;
    store.from_now_on(Fault::LoseRequest);
    add(&other, "late").await;
    let hour = Ttl::from_secs(3600);
    let queues = vec![QueueName::new(Say::QUEUE).unwrap()];
    let request = LeaseTasks::new(worker.id(), queues, 1, hour);
    assert_eq!(other.store().tasks().unwrap().lease(&request).await.unwrap().tasks.len(), 1);
    // New tasks wake the worker, so that it sends requests, loses some answers, and queries its
    // leases.
    let unavailable = AtomicBool::new(false);
    until("it is started", async || {
        let fault =
            if unavailable.fetch_xor(true, Ordering::SeqCst) { Fault::LoseRequest } else { Fault::None };
        store.from_now_on(fault);
        add(&other, "another").await;
        reported.borrow().is_some()
    })
    .await;
    let task = reported.borrow().clone().unwrap();
    assert_eq!((task.state, task.attempt), (TaskState::Running, 1));
    assert!(task.lease_expires_at < task.leased_at.map(|at| at.plus(hour)), "no heartbeat for {task:?}");
}

/// A failover can lose the settlement of a task and keep its lease, which the worker then finds.
#[tokio::test]
async fn a_task_whose_settlement_the_engine_lost_runs_again_with_a_newer_token() {
    let (store, leasehold, other) = faulty();
    let (id, tokens) = (Arc::new(OnceLock::new()), Arc::new(Mutex::new(Vec::new())));
    let seen = (id.clone(), tokens.clone());
    let handle = move |task: TaskContext<Payload>| {
        if seen.0.get() == Some(&task.id()) {
            seen.1.lock().unwrap().push(task.token());
        }
        std::future::ready(Ok::<_, HandlerError>(()))
    };
    // The lease outlasts the test: only the worker itself can end it.
    let builder = leasehold.worker().handle_queue(Say::QUEUE, Duration::from_mins(10), handle);
    let _worker = builder.start().unwrap();
    store.from_now_on(Fault::LoseRequest);
    store.lose_next_settlement();
    id.set(add(&other, "lost").await).unwrap();
    let polls = AtomicU32::new(0);
    until("it runs again", async || {
        // Rarely unavailable, because the delays of the worker grow until a request for tasks succeeds.
        let unavailable = polls.fetch_add(1, Ordering::SeqCst).is_multiple_of(4);
        store.from_now_on(if unavailable { Fault::LoseRequest } else { Fault::None });
        add(&other, "another").await;
        tokens.lock().unwrap().len() >= 2
    })
    .await;
    store.from_now_on(Fault::None);
    let id = *id.get().unwrap();
    until_state(&other, id, TaskState::Succeeded).await;
    let tokens = tokens.lock().unwrap().clone();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(other.tasks().unwrap().get(id).await.unwrap().attempt, 1);
}

#[tokio::test]
async fn the_tasks_of_a_crashed_worker_are_recovered_within_their_ttl() {
    let leasehold = memory().await;
    let active = Arc::new(AtomicU32::new(0));
    let runtime = runtime();
    let worker = {
        let _entered = runtime.enter();
        endless(&leasehold, &active)
    };
    let id = add(&leasehold, "long").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    runtime.shutdown_background();
    until("no handler is active", async || active.load(Ordering::SeqCst) == 0).await;
    let second = endless(&leasehold, &active);
    until("another worker runs it", async || active.load(Ordering::SeqCst) == 1).await;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!((task.worker, task.attempt), (Some(second.id()), 2));
    let waited = task.leased_at.unwrap().since(task.events[0].leased_at.unwrap());
    assert!(waited < TTL * 3, "recovered after {waited:?}");
    drop(worker);
}

/// Runtime that a test shuts down to simulate the crash of a process.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[tokio::test]
async fn a_crash_fails_no_prefetched_task() {
    let leasehold = memory().await;
    let active = Arc::new(AtomicU32::new(0));
    let all: Vec<Say> = (0..30).map(|number| Say { text: number.to_string() }).collect();
    leasehold.enqueue_all(&all).await.unwrap();
    let runtime = runtime();
    let worker = {
        let _entered = runtime.enter();
        let worker = leasehold.worker().slots(2).prefetch(20);
        let worker = worker.handle_with(active.clone(), |_: TaskContext<Say>, active| async move {
            active.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<(), HandlerError>>().await
        });
        worker.start().unwrap()
    };
    let tasks = leasehold.tasks().unwrap();
    let running = ListTasks::default().state(TaskState::Running);
    until("it has prefetched tasks", async || tasks.list(&running).await.unwrap().items.len() == 22).await;
    until("two run", async || active.load(Ordering::SeqCst) == 2).await;
    runtime.shutdown_background();
    let ended = AtomicU32::new(0);
    until("all leases have expired", async || {
        let recovered = tasks.recover(100).await.unwrap().expired();
        ended.fetch_add(recovered, Ordering::SeqCst) + recovered == 22
    })
    .await;
    let all = tasks.list(&ListTasks::default().limit(100)).await.unwrap().items;
    let used = all.iter().filter(|task| task.attempt > 0).count();
    assert_eq!((all.len(), used), (30, 2), "only what was started has used an attempt");
    drop(worker);
}

/// A worker with a task that has one attempt crashes while the task waits for its lock.
#[tokio::test]
async fn a_crash_fails_no_task_that_waits_for_its_lock() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let once = RetryPolicy { attempts: 1, ..Say::RETRIES };
    let locked = leasehold.enqueue(&Say { text: "locked".to_owned() }).lock("gpu").retries(once);
    let locked = locked.await.unwrap().id;
    let runtime = runtime();
    let start =
        || leasehold.worker().handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start();
    let worker = {
        let _entered = runtime.enter();
        start().unwrap()
    };
    let waits = async || leasehold.locks().status(&name("gpu")).await.unwrap().waiters.len() == 1;
    until("it waits for its lock", waits).await;
    runtime.shutdown_background();
    let tasks = leasehold.tasks().unwrap();
    until("its lease has expired", async || tasks.recover(10).await.unwrap().returned == 1).await;
    let task = tasks.get(locked).await.unwrap();
    assert_eq!((task.state, task.attempt, task.expiries), (TaskState::Pending, 0, 0));
    guard.release().await.unwrap();
    let _other = start().unwrap();
    until_state(&leasehold, locked, TaskState::Succeeded).await;
    drop(worker);
}

/// Adds a task whose first worker has crashed, and which has one attempt left: it runs alone.
async fn add_alone(leasehold: &Leasehold) -> TaskId {
    let alone = add(leasehold, "alone").await;
    lose_its_worker(leasehold).await;
    alone
}

/// Leases the next task, and lets the lease expire.
async fn lose_its_worker(leasehold: &Leasehold) {
    let (queues, short) = (vec![QueueName::new(Say::QUEUE).unwrap()], Ttl::from_millis(5));
    let request = LeaseTasks::new(WorkerId::from_uuid(uuid::Uuid::from_u128(9)), queues, 1, short);
    assert_eq!(leasehold.store().tasks().unwrap().lease(&request).await.unwrap().tasks.len(), 1);
    let tasks = leasehold.tasks().unwrap();
    until("its lease has expired", async || tasks.recover(10).await.unwrap().returned == 1).await;
}

#[tokio::test]
async fn a_task_that_runs_alone_and_waits_for_its_lock_stops_no_other() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let alone = leasehold.enqueue(&Say { text: "alone".to_owned() }).lock("gpu").await.unwrap().id;
    lose_its_worker(&leasehold).await;
    let worker =
        leasehold.worker().slots(1).handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) });
    let _worker = worker.start().unwrap();
    let tasks = leasehold.tasks().unwrap();
    let is_put_off = async || {
        let task = tasks.get(alone).await.unwrap();
        task.state == TaskState::Scheduled && task.run_at.since(task.updated_at) > Duration::from_secs(10)
    };
    until("it is put off", is_put_off).await;
    let other = add(&leasehold, "other").await;
    until_state(&leasehold, other, TaskState::Succeeded).await;
    assert_eq!(tasks.get(alone).await.unwrap().attempt, 1, "waiting uses no attempt");
    guard.release().await.unwrap();
}

/// The worker returns the task that waits for its lock: it must not start beside the one that runs alone.
#[tokio::test]
async fn a_task_that_runs_alone_does_not_wait_for_the_lock_of_another() {
    let leasehold = memory().await;
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let alone = add_alone(&leasehold).await;
    let locked = leasehold.enqueue(&Say { text: "locked".to_owned() }).lock("gpu").priority(9);
    let locked = locked.await.unwrap().id;
    let worker = leasehold.worker().slots(1);
    let worker = worker.handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) });
    let _worker = worker.start().unwrap();
    until_state(&leasehold, alone, TaskState::Succeeded).await;
    guard.release().await.unwrap();
    until_state(&leasehold, locked, TaskState::Succeeded).await;
    let task = leasehold.tasks().unwrap().get(locked).await.unwrap();
    assert_eq!(task.events[0].kind, TaskEventKind::Returned, "it had been leased before the other");
    assert_eq!(task.attempt, 1, "waiting does not count as an attempt");
}

#[tokio::test]
async fn a_task_that_runs_alone_waits_until_its_worker_is_idle() {
    let leasehold = memory().await;
    let tasks = leasehold.tasks().unwrap();
    let alone = add_alone(&leasehold).await;
    let (busy, beside) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let release = Arc::new(tokio::sync::Notify::new());
    let seen = (busy.clone(), beside.clone(), release.clone());
    let worker = leasehold.worker().slots(4).prefetch(4).handle_with(
        seen,
        |task: TaskContext<Say>, (busy, beside, release)| async move {
            if task.payload.text == "alone" {
                beside.fetch_max(busy.load(Ordering::SeqCst), Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                beside.fetch_max(busy.load(Ordering::SeqCst), Ordering::SeqCst);
                return Ok::<_, HandlerError>(());
            }
            busy.fetch_add(1, Ordering::SeqCst);
            if task.payload.text == "slow" {
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
    until_state(&leasehold, slow, TaskState::Running).await;
    until_state(&leasehold, alone, TaskState::Running).await;
    assert!(!tasks.get(alone).await.unwrap().begun, "it is leased, and waits");
    let later = add(&leasehold, "later").await;
    release.notify_one();
    until_state(&leasehold, alone, TaskState::Succeeded).await;
    until_state(&leasehold, later, TaskState::Succeeded).await;
    assert_eq!(beside.load(Ordering::SeqCst), 0, "no other task ran beside it");
    worker.stop(Duration::from_secs(5)).await;
}

/// A worker leases no more tasks while thousands of ended attempts wait to be settled. It goes on when
/// they have been settled, although no handler runs and no task arrives that could wake it.
#[tokio::test]
async fn a_worker_goes_on_after_the_store_was_slow_to_settle() {
    const TASKS: u32 = 3000;
    let (store, leasehold, other) = faulty();
    for number in 0..TASKS {
        other.enqueue(&Once(number)).await.unwrap();
    }
    store.hold_settlements(true);
    let worker = leasehold.worker().handle(|_: TaskContext<Once>| async { Ok::<_, HandlerError>(()) });
    let _worker = worker.start().unwrap();
    let count = async |state| {
        let queue = other.tasks().unwrap().queue(Once::QUEUE).await.unwrap();
        queue.counts.get(state)
    };
    until("the worker has many unsettled attempts", async || count(TaskState::Running).await >= 2000).await;
    // The handlers of all leased tasks have ended when no further task is leased.
    let leased = AtomicU64::new(0);
    until("the worker leases no more", async || {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = count(TaskState::Running).await;
        leased.swap(now, Ordering::SeqCst) == now
    })
    .await;
    store.hold_settlements(false);
    until("all tasks are done", async || count(TaskState::Succeeded).await == u64::from(TASKS)).await;
}
