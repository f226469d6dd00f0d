//! The server restarts, the line is cut: no task is lost, and nothing happens twice.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Enqueued, LeaseTasks, Settle, Settled, Task, TaskState, Ttl, Verdict};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{Store, StoreUrl, TaskStore};
use leasehold::testing::shop::{queue, task, worker};

use crate::engines::postgres::faults::over_a_line;
use crate::engines::postgres::private::Server;
use crate::engines::postgres::server::Schema;
use crate::engines::proxy::Fault;

fn tasks(store: &Arc<PostgresStore>) -> &dyn TaskStore {
    store.tasks().unwrap()
}

fn ask(max: u32) -> LeaseTasks {
    LeaseTasks { worker: worker(1), queues: vec![queue("q")], max, ttl: Ttl::from_secs(60) }
}

fn done(task: &Task) -> Settle {
    Settle { id: task.id, token: task.token, verdict: Verdict::Done(None) }
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
