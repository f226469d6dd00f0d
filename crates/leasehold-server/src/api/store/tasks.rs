//! Task calls of the store protocol and the roles that they require.

use axum::response::Response;
use leasehold::model::{
    Cancel, Change, FinishedFilter, HeldTask, LeaseTasks, NewTask, Pause, QueueName, Retry, Settle, TaskId,
    TaskKey, TaskOp, Ttl, WorkerId, WorkerInfo,
};
use leasehold::store::protocol::TaskCall;
use leasehold::store::{ListTasks, Store, TaskStore, notify_worker};

use super::deadline::json_result;
use crate::access::{Identity, Role};
use crate::body::parse;
use crate::problem::{ApiResult, Problem};
use crate::server::App;
use crate::webhooks::{must_keep_its_webhook, must_not_claim_a_webhook};

const MAX_QUEUES: usize = 1000;
/// Maximum number of tasks or locks that one call lists, extends, settles, recovers, sweeps or deletes.
pub(super) const MAX_PER_CALL: u32 = 10_000;

pub(super) async fn call(app: &App, identity: &Identity, call: TaskCall, body: &[u8]) -> ApiResult<Response> {
    let store = app.leasehold.store();
    let Some(tasks) = store.tasks() else {
        return Err(Problem::new("NOT_SUPPORTED", "the store of this server does not support tasks"));
    };
    match call {
        TaskCall::Enqueue => enqueue(tasks, identity, body).await,
        TaskCall::Lease => lease(app, tasks, identity, body).await,
        TaskCall::Heartbeat => {
            let (mut worker, mut held, ttl): (WorkerInfo, Vec<HeldTask>, Ttl) = parse(body)?;
            must_fit_into_a_call(&held)?;
            worker.id = identity.worker(worker.id);
            let leases = held.iter_mut().map(|held| (held.id, &mut held.token)).collect();
            app.task_owners.check(tasks, identity, leases).await?;
            json_result(tasks.heartbeat(&worker, &held, ttl).await)
        }
        TaskCall::Deregister => {
            let (worker,): (WorkerId,) = parse(body)?;
            json_result(tasks.deregister(identity.worker(worker)).await)
        }
        TaskCall::Settle => {
            let (mut settle,): (Vec<Settle>,) = parse(body)?;
            must_fit_into_a_call(&settle)?;
            let leases = settle.iter_mut().map(|end| (end.id, &mut end.token)).collect();
            app.task_owners.check(tasks, identity, leases).await?;
            json_result(tasks.settle(&settle).await)
        }
        TaskCall::Change => change(&*store, tasks, identity, body).await,
        TaskCall::Recover => {
            let (limit,): (u32,) = parse(body)?;
            json_result(tasks.recover(limit.min(MAX_PER_CALL)).await)
        }
        TaskCall::Get => {
            let (id,): (TaskId,) = parse(body)?;
            let task = tasks.get(id).await;
            if let Ok(Some(task)) = &task {
                identity.must_reach_queue(&task.queue)?;
            }
            json_result(task)
        }
        TaskCall::GetByKey => {
            let (queue, key): (QueueName, TaskKey) = parse(body)?;
            identity.must_reach_queue(&queue)?;
            json_result(tasks.get_by_key(&queue, &key).await)
        }
        TaskCall::List => {
            let (mut query,): (ListTasks,) = parse(body)?;
            query.limit = query.limit.min(MAX_PER_CALL);
            must_reach_list(identity, &query)?;
            json_result(tasks.list(&query).await)
        }
        TaskCall::Queues => {
            identity.must_reach_all()?;
            json_result(tasks.queues().await)
        }
        TaskCall::Queue => {
            let (queue,): (QueueName,) = parse(body)?;
            identity.must_reach_queue(&queue)?;
            json_result(tasks.queue(&queue).await)
        }
        TaskCall::Pause => {
            let (queue, pause): (QueueName, Option<Pause>) = parse(body)?;
            identity.must_reach_queue(&queue)?;
            let pause = pause.map(|pause| Pause { by: identity.signed(pause.by), ..pause });
            json_result(tasks.pause(&queue, pause).await)
        }
        TaskCall::Workers => {
            identity.must_reach_all()?;
            json_result(tasks.workers().await)
        }
        TaskCall::Archive | TaskCall::Purge => {
            let (mut filter,): (FinishedFilter,) = parse(body)?;
            filter.limit = filter.limit.min(MAX_PER_CALL);
            identity.must_reach_queues(filter.queue.as_ref())?;
            match call {
                TaskCall::Archive => json_result(tasks.archive(&filter).await),
                _ => json_result(tasks.purge(&filter).await),
            }
        }
        TaskCall::Now => json_result(tasks.now().await),
    }
}

async fn enqueue(tasks: &dyn TaskStore, identity: &Identity, body: &[u8]) -> ApiResult<Response> {
    let (mut new,): (Vec<NewTask>,) = parse(body)?;
    for task in &mut new {
        identity.sign_start(task);
        identity.must_reach_queue(&task.queue)?;
        task.lock.as_ref().map_or(Ok(()), |lock| identity.must_reach_lock(lock))?;
    }
    new.iter().try_for_each(|task| must_not_claim_a_webhook(&task.queue, &task.payload))?;
    json_result(tasks.enqueue(&new).await)
}

async fn lease(app: &App, tasks: &dyn TaskStore, identity: &Identity, body: &[u8]) -> ApiResult<Response> {
    let (mut request,): (LeaseTasks,) = parse(body)?;
    if request.queues.len() > MAX_QUEUES {
        return Err(Problem::invalid(format!("too many queues: at most {MAX_QUEUES} per lease call")));
    }
    request.queues.iter().try_for_each(|queue| identity.must_reach_queue(queue))?;
    request.worker = identity.worker(request.worker);
    let leased = tasks.lease(&request).await;
    if let Ok(leased) = &leased {
        app.task_owners.record(identity, &leased.tasks);
    }
    json_result(leased)
}

async fn change(
    store: &dyn Store,
    tasks: &dyn TaskStore,
    identity: &Identity,
    body: &[u8],
) -> ApiResult<Response> {
    let (id, op): (TaskId, TaskOp) = parse(body)?;
    if !matches!(op, TaskOp::Cancel(_) | TaskOp::Retry(_) | TaskOp::Update(_) | TaskOp::RenewRunner(_)) {
        return Err(Problem::invalid("invalid change: must be cancel, retry or update"));
    }
    if let TaskOp::Update(change) = &op {
        must_keep_its_webhook(tasks, id, change.payload.as_ref()).await?;
    }
    if identity.is_scoped()
        && let Some(task) = tasks.get(id).await?
    {
        identity.must_reach_queue(&task.queue)?;
    }
    let changed = tasks.change(id, &signed(op, identity)?).await;
    if let Ok(Some((_, task))) = &changed {
        notify_worker(store, task).await;
    }
    json_result(changed)
}

/// Writes the caller's API token beside the name that the caller claims, or in place of a missing name.
fn signed(op: TaskOp, identity: &Identity) -> ApiResult<TaskOp> {
    Ok(match op {
        TaskOp::Cancel(cancel) => TaskOp::Cancel(Cancel { by: identity.signed(cancel.by), ..cancel }),
        TaskOp::Retry(retry) => TaskOp::Retry(Retry { by: identity.signed(retry.by) }),
        TaskOp::Update(change) => {
            let by = match change.by {
                Some(by) => Some(identity.signed(by)),
                None if identity.has_token => Some(identity.holder()?),
                None => None,
            };
            TaskOp::Update(Change { by, ..change })
        }
        op => op,
    })
}

fn must_fit_into_a_call<T>(tasks: &[T]) -> ApiResult<()> {
    if tasks.len() > MAX_PER_CALL as usize {
        return Err(Problem::invalid(format!("too many tasks: at most {MAX_PER_CALL} per call")));
    }
    Ok(())
}

/// Checks a listing: a worker may list its own tasks, whose queues are in its scope; other callers
/// name a queue.
fn must_reach_list(identity: &Identity, query: &ListTasks) -> ApiResult<()> {
    let is_own =
        query.worker.is_some_and(|worker| identity.worker_tag().is_some_and(|tag| tag.is_on(worker)));
    if is_own { Ok(()) } else { identity.must_reach_queues(query.queue.as_ref()) }
}

pub(super) fn role(call: TaskCall) -> Role {
    match call {
        TaskCall::Get
        | TaskCall::GetByKey
        | TaskCall::List
        | TaskCall::Queues
        | TaskCall::Queue
        | TaskCall::Workers
        | TaskCall::Now => Role::Reader,
        TaskCall::Enqueue
        | TaskCall::Lease
        | TaskCall::Heartbeat
        | TaskCall::Deregister
        | TaskCall::Settle
        | TaskCall::Recover => Role::Worker,
        TaskCall::Change | TaskCall::Pause => Role::Operator,
        TaskCall::Archive | TaskCall::Purge => Role::Admin,
    }
}
