//! The calls on tasks, and who may make them.

use axum::response::Response;
use leasehold::model::{
    FinishedFilter, HeldTask, LeaseTasks, NewTask, Pause, QueueName, Settle, TaskId, TaskKey, TaskOp, Ttl,
    WorkerId, WorkerInfo,
};
use leasehold::store::protocol::TaskCall;
use leasehold::store::{ListTasks, Store, TaskStore, notify_worker};

use super::routes::answer;
use crate::access::{Role, Who};
use crate::body::parse;
use crate::problem::{Answer, Problem};
use crate::server::App;
use crate::webhooks::{must_keep_its_webhook, must_not_claim_a_webhook};

/// The most queues of one lease.
const MOST_QUEUES: usize = 1000;
/// The most tasks or locks that one call recovers, sweeps or forgets.
pub(super) const MOST_AT_ONCE: u32 = 10_000;

pub(super) async fn call(app: &App, who: &Who, call: TaskCall, body: &[u8]) -> Answer<Response> {
    let store = app.leasehold().store();
    let Some(tasks) = store.tasks() else {
        return Err(Problem::new("NOT_SUPPORTED", "the store of this server has no tasks"));
    };
    match call {
        TaskCall::Enqueue => enqueue(tasks, who, body).await,
        TaskCall::Lease => lease(app, tasks, who, body).await,
        TaskCall::Heartbeat => {
            let (mut worker, held, ttl): (WorkerInfo, Vec<HeldTask>, Ttl) = parse(body)?;
            worker.id = who.worker(worker.id);
            app.task_owners().check(tasks, who, held.iter().map(|held| (held.id, held.token))).await?;
            answer(tasks.heartbeat(&worker, &held, ttl).await)
        }
        TaskCall::Leave => {
            let (worker,): (WorkerId,) = parse(body)?;
            answer(tasks.leave(who.worker(worker)).await)
        }
        TaskCall::Settle => {
            let (settle,): (Vec<Settle>,) = parse(body)?;
            app.task_owners().check(tasks, who, settle.iter().map(|end| (end.id, end.token))).await?;
            answer(tasks.settle(&settle).await)
        }
        TaskCall::Change => change(&*store, tasks, who, body).await,
        TaskCall::Recover => {
            let (limit,): (u32,) = parse(body)?;
            answer(tasks.recover(limit.min(MOST_AT_ONCE)).await)
        }
        TaskCall::Get => {
            let (id,): (TaskId,) = parse(body)?;
            let task = tasks.get(id).await;
            if let Ok(Some(task)) = &task {
                who.must_reach_queue(&task.queue)?;
            }
            answer(task)
        }
        TaskCall::Keyed => {
            let (queue, key): (QueueName, TaskKey) = parse(body)?;
            who.must_reach_queue(&queue)?;
            answer(tasks.keyed(&queue, &key).await)
        }
        TaskCall::List => {
            let (mut ask,): (ListTasks,) = parse(body)?;
            ask.limit = ask.limit.min(MOST_AT_ONCE);
            must_reach_list(who, &ask)?;
            answer(tasks.list(&ask).await)
        }
        TaskCall::Queues => {
            who.must_reach_all()?;
            answer(tasks.queues().await)
        }
        TaskCall::Queue => {
            let (queue,): (QueueName,) = parse(body)?;
            who.must_reach_queue(&queue)?;
            answer(tasks.queue(&queue).await)
        }
        TaskCall::Pause => {
            let (queue, pause): (QueueName, Option<Pause>) = parse(body)?;
            who.must_reach_queue(&queue)?;
            answer(tasks.pause(&queue, pause).await)
        }
        TaskCall::Workers => {
            who.must_reach_all()?;
            answer(tasks.workers().await)
        }
        TaskCall::Archive => {
            let (mut which,): (FinishedFilter,) = parse(body)?;
            which.limit = which.limit.min(MOST_AT_ONCE);
            who.must_reach_queues(which.queue.as_ref())?;
            answer(tasks.archive(&which).await)
        }
        TaskCall::Purge => {
            let (mut which,): (FinishedFilter,) = parse(body)?;
            which.limit = which.limit.min(MOST_AT_ONCE);
            who.must_reach_queues(which.queue.as_ref())?;
            answer(tasks.purge(&which).await)
        }
        TaskCall::Now => answer(tasks.now().await),
    }
}

async fn enqueue(tasks: &dyn TaskStore, who: &Who, body: &[u8]) -> Answer<Response> {
    let (mut new,): (Vec<NewTask>,) = parse(body)?;
    for task in &mut new {
        who.sign_start(task);
        who.must_reach_queue(&task.queue)?;
        task.lock.as_ref().map_or(Ok(()), |lock| who.must_reach_lock(lock))?;
    }
    new.iter().try_for_each(|task| must_not_claim_a_webhook(&task.queue, &task.payload))?;
    answer(tasks.enqueue(&new).await)
}

async fn lease(app: &App, tasks: &dyn TaskStore, who: &Who, body: &[u8]) -> Answer<Response> {
    let (mut ask,): (LeaseTasks,) = parse(body)?;
    if ask.queues.len() > MOST_QUEUES {
        return Err(Problem::invalid(format!("one lease looks into {MOST_QUEUES} queues at most")));
    }
    ask.queues.iter().try_for_each(|queue| who.must_reach_queue(queue))?;
    ask.worker = who.worker(ask.worker);
    let leased = tasks.lease(&ask).await;
    if let Ok(leased) = &leased {
        app.task_owners().note(who, &leased.tasks);
    }
    answer(leased)
}

async fn change(store: &dyn Store, tasks: &dyn TaskStore, who: &Who, body: &[u8]) -> Answer<Response> {
    let (id, op): (TaskId, TaskOp) = parse(body)?;
    if !matches!(op, TaskOp::Cancel(_) | TaskOp::Retry(_) | TaskOp::Update(_) | TaskOp::Want(_)) {
        return Err(Problem::invalid("a change that is made by hand is to cancel, retry or update"));
    }
    if let TaskOp::Update(change) = &op {
        must_keep_its_webhook(tasks, id, change.payload.as_ref()).await?;
    }
    if who.is_scoped()
        && let Some(task) = tasks.get(id).await?
    {
        who.must_reach_queue(&task.queue)?;
    }
    let changed = tasks.change(id, &op).await;
    if let Ok(Some((_, task))) = &changed {
        notify_worker(store, task).await;
    }
    answer(changed)
}

/// A worker looks for its own tasks, whose queues it reaches; all others name a queue.
fn must_reach_list(who: &Who, ask: &ListTasks) -> Answer<()> {
    let is_own = ask.worker.is_some_and(|worker| who.worker_tag().is_some_and(|tag| tag.is_on(worker)));
    if is_own { Ok(()) } else { who.must_reach_queues(ask.queue.as_ref()) }
}

/// Who may make this call.
pub(super) fn role(call: TaskCall) -> Role {
    match call {
        TaskCall::Get
        | TaskCall::Keyed
        | TaskCall::List
        | TaskCall::Queues
        | TaskCall::Queue
        | TaskCall::Workers
        | TaskCall::Now => Role::Reader,
        TaskCall::Enqueue
        | TaskCall::Lease
        | TaskCall::Heartbeat
        | TaskCall::Leave
        | TaskCall::Settle
        | TaskCall::Recover => Role::Worker,
        TaskCall::Change | TaskCall::Pause => Role::Operator,
        TaskCall::Archive | TaskCall::Purge => Role::Admin,
    }
}
