//! Large store: held locks, some with waiters, and tasks in several states and queues.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use leasehold::model::{
    Acquire, AttemptResult, Holder, LeaseId, LeaseTasks, LockName, LockOp, LockRequest, Message, NewTask,
    Payload, QueueName, Settle, TaskId, Ttl, WorkerId,
};
use leasehold::store::Store;
use leasehold::{Leasehold, OnLocked};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::cli::DashboardArgs;

/// Long enough for the measurement: the holders do not renew.
const TTL: Ttl = Ttl::from_secs(4 * 3600);
/// Concurrent calls for locks.
const CLIENTS: u32 = 64;
/// Tasks per call.
const BATCH: u32 = 1000;
const QUEUES: [&str; 3] = ["mail", "video", "reports"];
/// Tasks of the small queue and executions of the workflow; all other tasks are newer.
const FEW: u32 = 20;

/// One task that can be looked at.
pub(super) struct Filled {
    pub(super) task: TaskId,
}

/// Returns the name of a lock.
pub(super) fn lock(number: u32) -> String {
    format!("tenant-{:03}/job-{number:06}", number % 100)
}

/// Fills an empty store.
pub(super) async fn fill(leasehold: &Leasehold, args: &DashboardArgs) -> Result<Filled> {
    ensure!(leasehold.tasks()?.queues().await?.is_empty(), "the store is not empty");
    let payload = || Payload::new("{\"to\":\"ada@example.com\"}");
    for number in 0..FEW {
        let started = leasehold.workflow("build").on_locked(OnLocked::Queue(FEW)).start(&number).await?;
        ensure!(started.execution().is_some(), "an execution was not started");
        leasehold.enqueue_to("small", payload()?).await?;
    }
    acquire(leasehold, args).await?;
    let mut last = None;
    for batch in 0..args.tasks.div_ceil(BATCH) {
        let queue = QueueName::new(QUEUES[usize::try_from(batch)? % QUEUES.len()])?;
        let new = |_| Ok(NewTask::new(TaskId::from_uuid(Uuid::now_v7()), queue.clone(), payload()?));
        let new = (0..BATCH.min(args.tasks - batch * BATCH)).map(new).collect::<Result<Vec<_>>>()?;
        last = new.last().map(|task| task.id);
        leasehold.enqueue_new(new).await?.into_iter().collect::<leasehold::Result<Vec<_>>>()?;
    }
    finish(&*leasehold.store(), args.tasks / 2).await?;
    Ok(Filled { task: last.context("at least one task is needed")? })
}

/// Takes all locks, and queues a waiter for the last ones.
async fn acquire(leasehold: &Leasehold, args: &DashboardArgs) -> Result<()> {
    let mut clients = JoinSet::new();
    let (locks, waited) = (args.locks, args.waited.min(args.locks));
    for client in 0..CLIENTS {
        let store = leasehold.store();
        clients.spawn(async move {
            for number in (client..locks).step_by(CLIENTS as usize) {
                let name = LockName::new(lock(number))?;
                request(&*store, &name, format!("ci@runner-{}", number % 500), None).await?;
                if number >= locks - waited {
                    request(&*store, &name, format!("web-{}", number % 50), Some(TTL)).await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

async fn request(store: &dyn Store, name: &LockName, holder: String, queue: Option<Ttl>) -> Result<()> {
    let request = LockRequest::new(LeaseId::from_uuid(Uuid::now_v7()), Holder::new(holder)?, TTL);
    let acquire = Acquire { request: Arc::new(request), queue, steal_after: None };
    store.locks().apply(name, &LockOp::Acquire(acquire)).await?;
    Ok(())
}

/// Finishes this number of tasks; each hundredth fails.
async fn finish(store: &dyn Store, tasks: u32) -> Result<()> {
    let store = store.tasks().context("the store does not support tasks")?;
    let queues = QUEUES.map(QueueName::new).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut finished = 0;
    while finished < tasks {
        let worker = WorkerId::from_uuid(Uuid::now_v7());
        let leased = store.lease(&LeaseTasks::new(worker, queues.clone(), BATCH, TTL)).await?;
        ensure!(!leased.tasks.is_empty(), "no task can be leased");
        let settle: Vec<Settle> = leased
            .tasks
            .iter()
            .zip(0..)
            .map(|(task, number): (_, u32)| {
                let failed = || AttemptResult::Fail(Message::new("550 mailbox unavailable"));
                let result = if number % 100 == 7 { failed() } else { AttemptResult::Done(None) };
                Settle { id: task.id, token: task.token, result }
            })
            .collect();
        store.settle(&settle).await?;
        finished += u32::try_from(settle.len())?;
    }
    Ok(())
}
