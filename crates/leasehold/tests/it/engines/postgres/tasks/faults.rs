//! The server restarts, or connections are cut: no task is lost, and nothing happens twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::Leasehold;
use leasehold::model::{
    AttemptResult, Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, NewTask, Payload,
    Retention, Settle, Settled, Task, TaskId, TaskState, Timestamp, Token, Ttl,
};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{Store, StoreUrl, TaskStore};
use leasehold::testing::task_fixture::{cancel, info, queue, task, why, worker};

use crate::engines::postgres::faults::{proxy_before, through_proxy};
use crate::engines::postgres::private_server::Server;
use crate::engines::postgres::schema::Schema;
use crate::engines::proxy::Fault;
use crate::engines::support::clock;

fn tasks(store: &Arc<PostgresStore>) -> &dyn TaskStore {
    store.tasks().unwrap()
}

fn request(max: u32) -> LeaseTasks {
    LeaseTasks::new(worker(1), vec![queue("q")], max, Ttl::from_secs(60))
}

fn done(task: &Task) -> Settle {
    Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) }
}

async fn count(store: &Arc<PostgresStore>, state: TaskState) -> u64 {
    tasks(store).queues().await.unwrap().first().map_or(0, |status| status.counts.get(state))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_resent_after_a_lost_answer_takes_effect_once() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "pool=1").await;
    let direct = schema.store().await;
    // Opens the connection and prepares the statements.
    tasks(&store).enqueue(&[task(1)]).await.unwrap();
    tasks(&store).enqueue(&[task(2).with_key("k")]).await.unwrap();
    let leased = tasks(&store).lease(&request(1)).await.unwrap().tasks;
    tasks(&store).settle(&[done(&leased[0])]).await.unwrap();
    for (number, new) in [(3, task(3)), (4, task(4).with_key("l").with_lock("m"))] {
        proxy.set(Fault::DropReplies(1));
        assert_eq!(tasks(&store).enqueue(&[new]).await.unwrap(), [Enqueued::Added(task(number).id)]);
    }
    assert_eq!(count(&direct, TaskState::Pending).await, 3);
    let leased = tasks(&direct).lease(&request(3)).await.unwrap().tasks;
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
async fn a_dropped_call_leaves_nothing_half_done() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "pool=2").await;
    tasks(&store).enqueue(&[task(1_000).with_lock("l")]).await.unwrap();
    proxy.set(Fault::Delay(Duration::from_millis(3)));
    for number in 0..20_u128 {
        let new = [task(2 * number + 1), task(2 * number + 2).with_lock("l")];
        let timeout = Duration::from_millis(u64::try_from(number).unwrap());
        let _ = tokio::time::timeout(timeout, tasks(&store).enqueue(&new)).await;
    }
    proxy.set(Fault::None);
    for number in 0..20_u128 {
        tasks(&store).enqueue(&[task(2 * number + 1), task(2 * number + 2).with_lock("l")]).await.unwrap();
    }
    assert_eq!((count(&store, TaskState::Pending).await, count(&store, TaskState::Blocked).await), (21, 20));
}

/// Two statements that add tasks are in flight, and the tasks of a third caller wait for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_tasks_of_a_dropped_call_are_not_added() {
    let schema = Schema::new();
    let store = schema.store().await;
    tasks(&store).enqueue(&[task(1)]).await.unwrap();
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let table = format!("{}.tasks", schema.name);
    transaction.batch_execute(&format!("LOCK TABLE {table} IN SHARE MODE")).await.unwrap();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass";
    let mut in_flight = Vec::new();
    for number in [2, 3] {
        let store = store.clone();
        in_flight.push(tokio::spawn(async move { tasks(&store).enqueue(&[task(number)]).await }));
        let expected = i64::try_from(in_flight.len()).unwrap();
        while !in_flight[0].is_finished()
            && transaction.query_one(waiting, &[&table]).await.unwrap().get::<_, i64>(0) < expected
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(tasks(&store).enqueue(&[task(4)]).now_or_never().is_none(), "the call waits");
    transaction.rollback().await.unwrap();
    for call in in_flight {
        // On a slow machine the server may have given up on it.
        let _ = call.await.unwrap();
    }
    tasks(&store).enqueue(&[task(5)]).await.unwrap();
    assert_eq!(tasks(&store).get(task(4).id).await.unwrap(), None);
}

/// Workers in a loop continue without intervention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_continue_after_a_restart_of_the_server() {
    let mut server = Server::start().await;
    let options = PostgresOptions::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    tasks(&store).enqueue(&(1..=200).map(task).collect::<Vec<_>>()).await.unwrap();
    let working = store.clone();
    let (sender, mut progress) = tokio::sync::mpsc::unbounded_channel();
    let worker = tokio::spawn(async move {
        let (mut settled, mut failed) = (0, 0);
        while settled < 200 {
            let mut arrivals = tasks(&working).subscribe_queues(&[queue("q")]);
            let request = LeaseTasks { ttl: Ttl::from_millis(500), ..request(5) };
            let leased = match tasks(&working).lease(&request).await {
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
            // A call whose answer was lost is repeated.
            let answers = loop {
                match tasks(&working).settle(&all).await {
                    Ok(answers) => break answers,
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            settled += answers.iter().filter(|answer| matches!(answer, Settled::Now(_))).count();
            let _ = sender.send(settled);
        }
        (settled, failed)
    });
    while progress.recv().await.unwrap() < 50 {}
    server.kill();
    server.up().await;
    let (settled, _) = tokio::time::timeout(Duration::from_mins(1), worker).await.unwrap().unwrap();
    assert_eq!(settled, 200);
    assert_eq!(count(&store, TaskState::Succeeded).await, 200);
}

/// A heartbeat does not wait behind other calls of its process, however many wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_does_not_wait_for_a_connection() {
    let schema = Schema::new();
    let store = Arc::new(PostgresStore::connect(schema.options("pool=2")).await.unwrap());
    tasks(&store).enqueue(&[task(1)]).await.unwrap();
    let leased = tasks(&store).lease(&request(1)).await.unwrap().tasks;
    let held = [HeldTask::new(leased[0].id, leased[0].token)];
    // Tasks with a key wait for this table lock on both connections, and many more calls wait for the connections.
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
        assert_eq!(beats.expect("the heartbeat did not wait").unwrap(), [HeartbeatResult::Extended(None)]);
    }
    transaction.rollback().await.unwrap();
    for call in burst {
        assert!(call.await.unwrap().is_ok(), "the call succeeds after the wait");
    }
}

/// A transaction of a caller that has added a task with a lock keeps the head row of that lock locked until it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_head_row_stalls_no_other_settlement() {
    let schema = Schema::new();
    let store = schema.store().await;
    let mut new: Vec<_> = (1..=10).map(task).collect();
    new.extend([task(11).with_lock("m"), task(12).with_lock("l"), task(13).with_lock("l")]);
    tasks(&store).enqueue(&new).await.unwrap();
    let leased = tasks(&store).lease(&request(100)).await.unwrap().tasks;
    assert_eq!(leased.len(), 12);
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let added = store.enqueue_in_transaction(&transaction, &[task(100).with_lock("l")]).await.unwrap();
    let started = std::time::Instant::now();
    let mut settles: Vec<Settle> = leased.iter().map(done).collect();
    // Includes one that only the slow path can settle.
    settles[0].result = AttemptResult::Retry(why(), None);
    for (number, answer) in tasks(&store).settle(&settles).await.unwrap().into_iter().enumerate() {
        match number {
            0 => assert_eq!(answer, Settled::Now(TaskState::Scheduled)),
            11 => assert_eq!(answer, Settled::Busy, "its head row is locked"),
            _ => assert_eq!(answer, Settled::Now(TaskState::Succeeded), "{number}"),
        }
    }
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    transaction.commit().await.unwrap();
    added.wake.after_commit();
    let last = [settles.pop().unwrap()];
    assert_eq!(tasks(&store).settle(&last).await.unwrap(), [Settled::Now(TaskState::Succeeded)]);
    let leased = tasks(&store).lease(&request(100)).await.unwrap().tasks;
    assert_eq!(leased.iter().map(|task| task.id).collect::<Vec<_>>(), [task(13).id]);
}

/// A transaction of a caller may last long: heartbeats of running tasks must not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_transaction_locks_no_running_task() {
    let schema = Schema::new();
    let store = schema.store().await;
    tasks(&store).enqueue(&[task(1).with_lock("l"), task(2).with_key("k")]).await.unwrap();
    let leased = tasks(&store).lease(&request(10)).await.unwrap().tasks;
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

/// Like above, for a worker: completed tasks are settled, and the blocked one is settled as soon as possible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_continues_beside_a_locked_head_row() {
    let schema = Schema::new();
    let store = schema.store().await;
    tasks(&store).enqueue(&[task(1).with_lock("l")]).await.unwrap();
    let leasehold = leasehold::Leasehold::with_store(store.clone()).unwrap();
    let (begun, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Semaphore::new(0)));
    let (seen, may_end) = (begun.clone(), go.clone());
    let worker = leasehold.worker().handle_queue("q", Duration::from_secs(20), move |running| {
        let (seen, may_end) = (seen.clone(), may_end.clone());
        async move {
            if running.lock_token().is_some() {
                seen.notify_one();
                may_end.acquire().await.unwrap().forget();
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
        assert!(started.elapsed() < Duration::from_secs(10), "other tasks wait for the blocked one");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let blocked = tasks(&store).get(task(1).id).await.unwrap().unwrap();
    assert_eq!(blocked.state, TaskState::Running);
    transaction.commit().await.unwrap();
    added.wake.after_commit();
    let started = std::time::Instant::now();
    while count(&store, TaskState::Succeeded).await < 21 {
        assert!(started.elapsed() < Duration::from_secs(20), "the blocked task is never settled");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    worker.stop(Duration::from_secs(5)).await;
}

/// A caller that has locked the row of one running task ends no lease of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_task_delays_no_other_heartbeat() {
    let schema = Schema::new();
    let store = schema.store().await;
    tasks(&store).enqueue(&(1..=10).map(task).collect::<Vec<_>>()).await.unwrap();
    let leased = tasks(&store).lease(&request(10)).await.unwrap().tasks;
    let mut held: Vec<HeldTask> = leased.iter().map(|task| HeldTask::new(task.id, task.token)).collect();
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let lock = format!("SELECT FROM {}.tasks WHERE id = '{}' FOR UPDATE", schema.name, held[3].id);
    transaction.batch_execute(&lock).await.unwrap();
    // An ended lease is lost, whether its row is locked or not.
    held.extend([3, 4].map(|number: usize| HeldTask::new(held[number].id, Token::new(1).unwrap())));
    let started = std::time::Instant::now();
    let beat = async || tasks(&store).heartbeat(&info(1), &held, Ttl::from_secs(600)).await.unwrap();
    let results = beat().await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    for (number, result) in results.into_iter().enumerate() {
        let expected = match number {
            3 => HeartbeatResult::Busy,
            10 | 11 => HeartbeatResult::Lost,
            _ => HeartbeatResult::Extended(None),
        };
        assert_eq!(result, expected, "{number}");
    }
    let ends = async |number: usize| {
        let task = tasks(&store).get(held[number].id).await.unwrap().unwrap();
        task.lease_expires_at.unwrap().since(leased[number].lease_expires_at.unwrap())
    };
    assert!(ends(2).await > Duration::from_mins(5), "it is extended");
    assert_eq!(ends(3).await, Duration::ZERO);
    transaction.rollback().await.unwrap();
    assert_eq!(beat().await[3], HeartbeatResult::Extended(None));
}

/// Like above, for a worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_keeps_its_leases_beside_a_locked_task() {
    let schema = Schema::new();
    let store = schema.store().await;
    tasks(&store).enqueue(&[task(1), task(2)]).await.unwrap();
    let leasehold = Leasehold::with_store(store.clone()).unwrap();
    let running = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let (seen, may_end) = (running.clone(), go.clone());
    let worker = leasehold.worker().handle_queue("q", Duration::from_secs(3), move |context| {
        let (runs, may_end) = (Runs::begin(seen.clone(), context.id()), may_end.clone());
        async move {
            may_end.acquire().await.unwrap().forget();
            drop(runs);
            Ok::<_, leasehold::HandlerError>(())
        }
    });
    let worker = worker.start().unwrap();
    let until_running = async |expected: &[u128]| {
        let expected: BTreeSet<TaskId> = expected.iter().map(|number| task(*number).id).collect();
        while *running.lock().unwrap() != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until_running(&[1, 2]).await;
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let lock = format!("SELECT FROM {}.tasks WHERE id = '{}' FOR UPDATE", schema.name, task(1).id);
    transaction.batch_execute(&lock).await.unwrap();
    // The worker stops the handler whose lease it cannot extend.
    until_running(&[2]).await;
    transaction.rollback().await.unwrap();
    go.add_permits(10);
    let other = loop {
        let other = tasks(&store).get(task(2).id).await.unwrap().unwrap();
        if other.state == TaskState::Succeeded {
            break other;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((other.attempt, other.events.len()), (1, 0), "its only attempt");
    worker.stop(Duration::from_secs(5)).await;
}

/// Handler of a task that runs, until it ends or is stopped.
struct Runs(Arc<std::sync::Mutex<BTreeSet<TaskId>>>, TaskId);

impl Runs {
    fn begin(running: Arc<std::sync::Mutex<BTreeSet<TaskId>>>, id: TaskId) -> Self {
        running.lock().unwrap().insert(id);
        Self(running, id)
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.lock().unwrap().remove(&self.1);
    }
}

/// The tasks of one queue cannot be deleted, by an error of this queue and by one that may concern the whole store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_cannot_be_purged_does_not_stop_the_others() {
    let (schema, clock) = (Schema::new(), clock());
    let store = schema.store_at(&clock, "").await;
    let leasehold = Leasehold::with_store(store.clone()).unwrap();
    let retention = Retention::all(Some(Ttl::from_secs(3600)));
    for name in ["a", "b"] {
        leasehold.tasks().unwrap().set_retention(Some(&queue(name)), Some(retention)).await.unwrap();
    }
    let client = schema.client().await;
    for (number, code, expected) in [(1, "P0001", Ok(1)), (3, "55P03", Err("STORE_UNAVAILABLE"))] {
        let refuse = format!(
            "CREATE OR REPLACE FUNCTION {0}.refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE 'refused' USING ERRCODE = '{code}'; END $$;
             DROP TRIGGER IF EXISTS refuse ON {0}.tasks;
             CREATE TRIGGER refuse BEFORE DELETE ON {0}.tasks FOR EACH ROW WHEN (OLD.queue = 'a')
                 EXECUTE FUNCTION {0}.refuse()",
            schema.name
        );
        client.batch_execute(&refuse).await.unwrap();
        let [refused, purged] = [("a", number), ("b", number + 1)].map(|(name, number)| {
            let mut new = task(number);
            new.queue = queue(name);
            new
        });
        tasks(&store).enqueue(&[refused.clone(), purged.clone()]).await.unwrap();
        for id in [refused.id, purged.id] {
            tasks(&store).change(id, &cancel()).await.unwrap();
        }
        clock.advance(Duration::from_hours(2));
        let answer = leasehold.tasks().unwrap().apply_retention().await;
        assert_eq!(answer.map_err(|error| error.code()), expected);
        assert!(tasks(&store).get(refused.id).await.unwrap().is_some());
        assert!(tasks(&store).get(purged.id).await.unwrap().is_none());
    }
}

/// The rules do not read the payloads of expired tasks, of the tasks behind them, or of failed attempts: they are neither
/// sent nor changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_and_failed_tasks_are_changed_without_their_payloads() {
    let (schema, clock) = (Schema::new(), clock());
    let (proxy, mut options) = proxy_before(&schema, "sslmode=disable");
    options.clock = Some(clock.clone());
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let payload = Payload::of(&"x".repeat(200_000)).unwrap();
    let new = |number| NewTask { payload: payload.clone(), ..task(number) };
    tasks(&store).enqueue(&[new(1), new(2).with_lock("l"), new(3).with_lock("l")]).await.unwrap();
    let sent = || proxy.counts().there + proxy.counts().back;
    assert_eq!(tasks(&store).lease(&request(3)).await.unwrap().tasks.len(), 2);
    clock.advance(Duration::from_mins(2));
    let before = sent();
    assert_eq!(tasks(&store).recover(10).await.unwrap().expired(), 2);
    let recovered = sent();
    let leased = tasks(&store).lease(&request(3)).await.unwrap().tasks;
    let failed = |task: &Task| Settle { id: task.id, token: task.token, result: AttemptResult::Fail(why()) };
    let leased_at = sent();
    tasks(&store).settle(&leased.iter().map(failed).collect::<Vec<_>>()).await.unwrap();
    let (recovered, settled) = (recovered - before, sent() - leased_at);
    assert!(recovered < 100_000 && settled < 100_000, "{recovered} and {settled} bytes");
    for number in 1..=3 {
        let stored = tasks(&store).get(task(number).id).await.unwrap().unwrap();
        assert_eq!(stored.payload, payload, "{number}");
    }
}

/// What a recovery does besides ends no lease: it may fail without a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_does_not_depend_on_what_is_purged_with_it() {
    let (schema, clock) = (Schema::new(), clock());
    let store = schema.store_at(&clock, "").await;
    let client = schema.client().await;
    let name = &schema.name;
    let triggers = ["workers", "docs", "task_counts"].map(|table| {
        format!(
            "CREATE TRIGGER refuse BEFORE DELETE ON {name}.{table} FOR EACH STATEMENT EXECUTE FUNCTION {name}.refuse();"
        )
    });
    let refuse = format!(
        "CREATE FUNCTION {name}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$; {}",
        triggers.concat()
    );
    client.batch_execute(&refuse).await.unwrap();
    tasks(&store).enqueue(&[task(1)]).await.unwrap();
    assert_eq!(tasks(&store).lease(&request(1)).await.unwrap().tasks.len(), 1);
    clock.advance(Duration::from_mins(2));
    assert_eq!(tasks(&store).recover(10).await.unwrap().expired(), 1);
    assert_eq!(count(&store, TaskState::Pending).await, 1);
    assert_eq!(tasks(&store).recover(10).await.unwrap().expired(), 0);
}

/// Another program keeps a table locked. What a recovery deletes besides waits for that, and the recovery does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_does_not_wait_for_what_is_purged_with_it() {
    let schema = Schema::new();
    let store = schema.store().await;
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let table = format!("{}.docs", schema.name);
    transaction.batch_execute(&format!("LOCK TABLE {table}")).await.unwrap();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass";
    let still_waits = async {
        loop {
            tasks(&store).recover(10).await.unwrap();
            if transaction.query_one(waiting, &[&table]).await.unwrap().get::<_, i64>(0) > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(30), still_waits).await;
    assert!(done.is_ok(), "a recovery returns only when nothing waits for the table any more");
    transaction.rollback().await.unwrap();
}

/// Another program keeps the row of a finished task locked: as many others are deleted as were requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_finished_task_does_not_shorten_a_purge() {
    let schema = Schema::new();
    let store = schema.store().await;
    let new: Vec<_> = (1..=15).map(task).collect();
    tasks(&store).enqueue(&new).await.unwrap();
    for new in &new {
        tasks(&store).change(new.id, &cancel()).await.unwrap();
    }
    let mut client = schema.client().await;
    let transaction = client.transaction().await.unwrap();
    let lock = format!("SELECT id FROM {}.tasks WHERE id = $1 FOR UPDATE", schema.name);
    let first = *new[0].id.as_uuid();
    transaction.query_one(&lock, &[&first]).await.unwrap();
    let filter =
        FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(u64::MAX), limit: 10 };
    assert_eq!(tasks(&store).purge(&filter).await.unwrap(), 10);
    assert!(tasks(&store).get(new[0].id).await.unwrap().is_some());
    transaction.rollback().await.unwrap();
    assert_eq!(tasks(&store).purge(&filter).await.unwrap(), 5);
}
