//! Task calls of the store protocol and the roles that they require.

use axum::response::Response;
use leasehold::model::{
    Cancel, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, NewTask, Pause, QueueName, Retry, Settle,
    TaskId, TaskKey, TaskOp, TaskState, TaskUpdate, Ttl, WorkerId, WorkerInfo,
};
use leasehold::store::protocol::TaskCall;
use leasehold::store::{ListTasks, Store, TaskStore, notify_worker};

use super::deadline::json_result;
use crate::access::{Identity, Role};
use crate::api::page_parts::list_tasks;
use crate::problem::{ApiResult, Problem};
use crate::request::body::parse;
use crate::server::App;
use crate::webhooks::{must_keep_its_webhook, must_not_claim_a_webhook};

const MAX_QUEUES: usize = 1000;
/// Maximum number of tasks or locks that one call lists, extends, settles, recovers, sweeps or deletes.
pub(super) const MAX_PER_CALL: u32 = 10_000;
/// Maximum number of tasks that one call lists, and the number if the call gives none, as in the engines.
const MAX_LISTED: u32 = 1000;
const DEFAULT_LISTED: u32 = 100;

pub(super) async fn call(app: &App, identity: &Identity, call: TaskCall, body: &[u8]) -> ApiResult<Response> {
    let store = app.leasehold.store();
    let Some(tasks) = store.tasks() else {
        return Err(Problem::new("NOT_SUPPORTED", "the store of this server does not support tasks"));
    };
    match call {
        TaskCall::Enqueue => enqueue(tasks, identity, body).await,
        TaskCall::Lease => lease(app, tasks, identity, body).await,
        TaskCall::Heartbeat => heartbeat(app, tasks, identity, body).await,
        TaskCall::Deregister => {
            let (worker,): (WorkerId,) = parse(body)?;
            json_result(tasks.deregister(identity.worker(worker)).await)
        }
        TaskCall::Settle => settle(app, tasks, identity, body).await,
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
            let (query,): (ListTasks,) = parse(body)?;
            must_reach_list(identity, &query)?;
            let limit = if query.limit == 0 { DEFAULT_LISTED } else { query.limit.min(MAX_LISTED) };
            json_result(list_tasks(&app.leasehold.tasks()?, query.limit(limit)).await)
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
    let (new,): (Vec<NewTask>,) = parse(body)?;
    let mut new = new.into_iter().map(NewTask::as_execution).collect::<Result<Vec<_>, _>>()?;
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

async fn heartbeat(
    app: &App,
    tasks: &dyn TaskStore,
    identity: &Identity,
    body: &[u8],
) -> ApiResult<Response> {
    let (mut worker, mut held, ttl): (WorkerInfo, Vec<HeldTask>, Ttl) = parse(body)?;
    must_fit_into_a_call(&held)?;
    worker.id = identity.worker(worker.id);
    let leases = held.iter_mut().map(|held| (held.id, &mut held.token)).collect();
    app.task_owners.check(tasks, identity, leases).await?;
    let results = tasks.heartbeat(&worker, &held, ttl).await;
    if let Ok(results) = &results {
        let lost = held.iter().zip(results).filter(|(_, result)| **result == HeartbeatResult::Lost);
        app.task_owners.remove(lost.map(|(held, _)| (held.id, held.token)));
    }
    json_result(results)
}

async fn settle(app: &App, tasks: &dyn TaskStore, identity: &Identity, body: &[u8]) -> ApiResult<Response> {
    let (mut ends,): (Vec<Settle>,) = parse(body)?;
    must_fit_into_a_call(&ends)?;
    let leases = ends.iter_mut().map(|end| (end.id, &mut end.token)).collect();
    app.task_owners.check(tasks, identity, leases).await?;
    let settled = tasks.settle(&ends).await;
    if let Ok(settled) = &settled {
        app.task_owners.remove_settled(&ends, settled);
    }
    json_result(settled)
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
    if !is_by_runner(tasks, identity, id, &op).await? {
        identity.must_be(Role::Operator)?;
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

/// Whether the caller acts as the runner of an execution that its token has started: it reports that it still
/// waits, or withdraws the execution before it runs. This needs no operator.
async fn is_by_runner(
    tasks: &dyn TaskStore,
    identity: &Identity,
    id: TaskId,
    op: &TaskOp,
) -> ApiResult<bool> {
    if identity.role >= Role::Operator || !matches!(op, TaskOp::RenewRunner(_) | TaskOp::Cancel(_)) {
        return Ok(false);
    }
    let Some(task) = tasks.get(id).await? else { return Ok(false) };
    // A finished execution has no runner any more, and the store refuses both.
    let has_runner = task.runner_deadline.is_some() || task.state.is_terminal();
    let is_running = task.state == TaskState::Running;
    Ok(has_runner && !(is_running && matches!(op, TaskOp::Cancel(_))) && identity.has_started(&task))
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
            TaskOp::Update(TaskUpdate { by, ..change })
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

/// Returns the minimum role of a call. `change` requires an operator, except of the runner of an execution.
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
        | TaskCall::Change
        | TaskCall::Recover => Role::Worker,
        TaskCall::Pause => Role::Operator,
        TaskCall::Archive | TaskCall::Purge => Role::Admin,
    }
}
