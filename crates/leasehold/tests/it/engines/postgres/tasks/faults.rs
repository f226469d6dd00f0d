//! The server restarts, the line is cut: no task is lost, and nothing happens twice.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{
    AttemptResult, Enqueued, HeartbeatResult, HeldTask, LeaseTasks, NewTask, Settle, Settled, Task,
    TaskState, Ttl,
};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{Store, StoreUrl, TaskStore};
use leasehold::testing::shop::{info, queue, task, why, worker};

use crate::engines::postgres::faults::over_a_line;
use crate::engines::postgres::private::Server;
use crate::engines::postgres::server::Schema;
use crate::engines::proxy::Fault;

fn tasks(store: &Arc<PostgresStore>) -> &dyn TaskStore {
    store.tasks().unwrap()
}

fn ask(max: u32) -> LeaseTasks {
    LeaseTasks::new(worker(1), vec![queue("q")], max, Ttl::from_secs(60))
}

fn done(task: &Task) -> Settle {
    Settle { id: task.id, token: task.token, verdict: AttemptResult::Done(None) }
}

async fn count(store: &Arc<PostgresStore>, state: TaskState) -> u64 {
    tasks(store).queues().await.unwrap().first().map_or(0, |status| status.counts.get(state))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_again_after_a_lost_answer_was_done_once() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "pool=1").await;
    let direct = schema.store().await;
    // Opens the line and prepares what it takes.
    tasks(&store).enqueue(&[task(1)]).await.unwrap();
    tasks(&store).enqueue(&[task(2).with_key("k")]).await.unwrap();
    let leased = tasks(&store).lease(&ask(1)).await.unwrap().tasks;
    tasks(&store).settle(&[done(&leased[0])]).await.unwrap();
    for (number, new) in [(3, task(3)), (4, task(4).with_key("l").with_lock("m"))] {
        proxy.set(Fault::DropReplies(1));
        assert_eq!(tasks(&store).enqueue(&[new]).await.unwrap(), [Enqueued::Added(task(number).id)]);
    }
    assert_eq!(count(&direct, TaskState::Pending).await, 3);
    let leased = tasks(&direct).lease(&ask(3)).await.unwrap().tasks;
    proxy.set(Fault::DropReplies(1));
    let all: Vec<Settle> = leased.iter().map(done).collect();
    assert_eq!(tasks(&store).settle(&all).await.unwrap(), [Settled::Now(TaskState::Succeeded); 3]);
    proxy.set(Fault::None);
    assert_eq!(
        (count(&direct, TaskState::Succeeded).await, count(&direct, TaskState::Running).await),
        (4, 0)
    );
    for task in leased {
        let stored = tasks(&direct).get(task.id).await.unwrap().unwrap();
        assert_eq!(stored.version, task.version + 1, "settled once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_goes_away_leaves_nothing_half_done() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "pool=2").await;
    tasks(&store).enqueue(&[task(1_000).with_lock("l")]).await.unwrap();
    proxy.set(Fault::Delay(Duration::from_millis(3)));
    for number in 0..20_u128 {
        let new = [task(2 * number + 1), task(2 * number + 2).with_lock("l")];
        let patience = Duration::from_millis(u64::try_from(number).unwrap());
        let _ = tokio::time::timeout(patience, tasks(&store).enqueue(&new)).await;
    }
    proxy.set(Fault::None);
    for number in 0..20_u128 {
        tasks(&store).enqueue(&[task(2 * number + 1), task(2 * number + 2).with_lock("l")]).await.unwrap();
    }
    assert_eq!((count(&store, TaskState::Pending).await, count(&store, TaskState::Blocked).await), (21, 20));
}

/// Workers in a loop go on by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_go_on_after_a_restart_of_the_server() {
    let Some(mut server) = Server::start().await else { return };
    let options = PostgresOptions::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    tasks(&store).enqueue(&(1..=200).map(task).collect::<Vec<_>>()).await.unwrap();
    let working = store.clone();
    let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
    let worker = tokio::spawn(async move {
        let (mut settled, mut failed) = (0, 0);
        while settled < 200 {
            let mut arrivals = tasks(&working).arrivals(&[queue("q")]);
            let ask = LeaseTasks { ttl: Ttl::from_millis(500), ..ask(5) };
            let leased = match tasks(&working).lease(&ask).await {
                Ok(leased) => leased.tasks,
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    failed += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            if leased.is_empty() {
                let _ = tasks(&working).recover(100).await;
                arrivals.next(Some(Duration::from_millis(100))).await;
                continue;
            }
            let all: Vec<Settle> = leased.iter().map(done).collect();
            // An answer that was lost is asked for again.
            let answers = loop {
                match tasks(&working).settle(&all).await {
                    Ok(answers) => break answers,
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            settled += answers.iter().filter(|answer| matches!(answer, Settled::Now(_))).count();
            let _ = say.send(settled);
        }
        (settled, failed)
    });
    while said.recv().await.unwrap() < 50 {}
    server.kill();
    server.up().await;
    let (settled, _) = tokio::time::timeout(Duration::from_mins(1), worker).await.unwrap().unwrap();
    assert_eq!(settled, 200);
    assert_eq!(count(&store, TaskState::Succeeded).await, 200);
}

/// However many calls of this process wait for something, a heartbeat does not wait behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_does_not_wait_for_a_connection() {
    let Some(schema) = Schema::new() else { return };
    let store = Arc::new(PostgresStore::connect(schema.options("pool=2")).await.unwrap());
    tasks(&store).enqueue(&[task(1)]).await.unwrap();
    let leased = tasks(&store).lease(&ask(1)).await.unwrap().tasks;
    let held = [HeldTask::new(leased[0].id, leased[0].token)];
    // What has a key waits for this, with both connections, and many more calls wait for those.
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute(&format!("LOCK TABLE {}.task_keys", schema.name)).await.unwrap();
    let burst: Vec<_> = (10..40)
        .map(|number| {
            let (store, new) = (store.clone(), task(number).with_key(&number.to_string()));
            tokio::spawn(async move { tasks(&store).enqueue(&[new]).await })
        })
        .collect();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass";
    let table = format!("{}.task_keys", schema.name);
    loop {
        let stuck: i64 = transaction.query_one(waiting, &[&table]).await.unwrap().get(0);
        if stuck == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let worker = info(1);
    for _ in 0..3 {
        let beat = tasks(&store).heartbeat(&worker, &held, Ttl::from_secs(3));
        let beats = tokio::time::timeout(Duration::from_millis(1500), beat).await;
        assert_eq!(beats.expect("it did not wait").unwrap(), [HeartbeatResult::Extended(None)]);
    }
    transaction.rollback().await.unwrap();
    for call in burst {
        assert!(call.await.unwrap().is_ok(), "it had to wait, no more");
    }
}

/// A transaction of a caller that has added a task with a lock holds the head of that lock until it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_another_transaction_holds_stalls_no_other_settlement() {
    let Some(schema) = Schema::new() else { return };
    let store = schema.store().await;
    let mut new: Vec<_> = (1..=10).map(task).collect();
    new.extend([task(11).with_lock("m"), task(12).with_lock("l"), task(13).with_lock("l")]);
    tasks(&store).enqueue(&new).await.unwrap();
    let leased = tasks(&store).lease(&ask(100)).await.unwrap().tasks;
    assert_eq!(leased.len(), 12);
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let added = store.enqueue_in_transaction(&transaction, &[task(100).with_lock("l")]).await.unwrap();
    let started = std::time::Instant::now();
    let mut settles: Vec<Settle> = leased.iter().map(done).collect();
    // Also what only the rules can settle.
    settles[0].verdict = AttemptResult::Retry(why(), None);
    for (number, answer) in tasks(&store).settle(&settles).await.unwrap().into_iter().enumerate() {
        match number {
            0 => assert_eq!(answer, Settled::Now(TaskState::Scheduled)),
            11 => assert_eq!(answer, Settled::Busy, "its head is held"),
            _ => assert_eq!(answer, Settled::Now(TaskState::Succeeded), "{number}"),
        }
    }
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    transaction.commit().await.unwrap();
    added.wake.after_commit();
    let last = [settles.pop().unwrap()];
    assert_eq!(tasks(&store).settle(&last).await.unwrap(), [Settled::Now(TaskState::Succeeded)]);
    let leased = tasks(&store).lease(&ask(100)).await.unwrap().tasks;
    assert_eq!(leased.iter().map(|task| task.id).collect::<Vec<_>>(), [task(13).id]);
}

/// A transaction of a caller may last: the heartbeats of what runs must not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_adds_tasks_holds_nothing_that_runs() {
    let Some(schema) = Schema::new() else { return };
    let store = schema.store().await;
    tasks(&store).enqueue(&[task(1).with_lock("l"), task(2).with_key("k")]).await.unwrap();
    let leased = tasks(&store).lease(&ask(10)).await.unwrap().tasks;
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let better = task(3).with_lock("l").with_priority(9);
    let same_key = NewTask { payload: task(2).payload, ..task(4).with_key("k") };
    let added = store.enqueue_in_transaction(&transaction, &[better, same_key]).await.unwrap();
    assert_eq!(added.answers, [Enqueued::Added(task(3).id), Enqueued::Duplicate(task(2).id)]);
    let held = |task: &Task| HeldTask::new(task.id, task.token);
    let held: Vec<HeldTask> = leased.iter().map(held).collect();
    let started = std::time::Instant::now();
    let beats = tasks(&store).heartbeat(&info(1), &held, Ttl::from_secs(60)).await.unwrap();
    assert_eq!(beats, [HeartbeatResult::Extended(None), HeartbeatResult::Extended(None)]);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    transaction.commit().await.unwrap();
    added.wake.after_commit();
}

/// The same for a worker: what it has done is settled, and the one that is stuck is settled when it can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_goes_on_beside_a_head_that_another_transaction_holds() {
    let Some(schema) = Schema::new() else { return };
    let store = schema.store().await;
    tasks(&store).enqueue(&[task(1).with_lock("l")]).await.unwrap();
    let leasehold = leasehold::Leasehold::with_store(store.clone()).unwrap();
    let (begun, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Semaphore::new(0)));
    let (seen, gate) = (begun.clone(), go.clone());
    let worker = leasehold.worker().handle_queue("q", Duration::from_secs(20), move |running| {
        let (seen, gate) = (seen.clone(), gate.clone());
        async move {
            if running.lock_token().is_some() {
                seen.notify_one();
                gate.acquire().await.unwrap().forget();
            }
            Ok::<_, leasehold::HandlerError>(())
        }
    });
    let worker = worker.start().unwrap();
    begun.notified().await;
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let added = store.enqueue_in_transaction(&transaction, &[task(100).with_lock("l")]).await.unwrap();
    go.add_permits(2);
    let started = std::time::Instant::now();
    for number in 2..=20 {
        tasks(&store).enqueue(&[task(number)]).await.unwrap();
    }
    while count(&store, TaskState::Succeeded).await < 19 {
        assert!(started.elapsed() < Duration::from_secs(10), "others wait for the one that is stuck");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stuck = tasks(&store).get(task(1).id).await.unwrap().unwrap();
    assert_eq!(stuck.state, TaskState::Running);
    transaction.commit().await.unwrap();
    added.wake.after_commit();
    let started = std::time::Instant::now();
    while count(&store, TaskState::Succeeded).await < 21 {
        assert!(started.elapsed() < Duration::from_secs(20), "the one that was stuck is never settled");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    worker.stop(Duration::from_secs(5)).await;
}
