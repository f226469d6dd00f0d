//! The calls on tasks, and who may make them.

use axum::response::Response;
use leasehold::model::{
    Finished, HeldTask, LeaseTasks, NewTask, Pause, QueueName, Settle, TaskId, TaskKey, TaskOp, Ttl,
    WorkerId, WorkerInfo,
};
use leasehold::store::protocol::TaskCall;
use leasehold::store::{ListTasks, notify_worker};

use super::routes::answer;
use crate::access::Role;
use crate::body::parse;
use crate::problem::{Answer, Problem};
use crate::server::App;

/// So many queues of one lease.
const MOST_QUEUES: usize = 1000;
/// So many tasks or locks are looked after in one call.
pub(super) const MOST_AT_ONCE: u32 = 10_000;

pub(super) async fn call(app: &App, call: TaskCall, body: &[u8]) -> Answer<Response> {
    let store = app.leasehold().store();
    let Some(tasks) = store.tasks() else {
        return Err(Problem::new("NOT_SUPPORTED", "the store of this server has no tasks"));
    };
    match call {
        TaskCall::Enqueue => {
            let (new,): (Vec<NewTask>,) = parse(body)?;
            answer(tasks.enqueue(&new).await)
        }
        TaskCall::Lease => {
            let (ask,): (LeaseTasks,) = parse(body)?;
            if ask.queues.len() > MOST_QUEUES {
                return Err(Problem::invalid(format!("one lease looks into {MOST_QUEUES} queues at most")));
            }
            answer(tasks.lease(&ask).await)
        }
        TaskCall::Heartbeat => {
            let (worker, held, ttl): (WorkerInfo, Vec<HeldTask>, Ttl) = parse(body)?;
            answer(tasks.heartbeat(&worker, &held, ttl).await)
        }
        TaskCall::Leave => {
            let (worker,): (WorkerId,) = parse(body)?;
            answer(tasks.leave(worker).await)
        }
        TaskCall::Settle => {
            let (settle,): (Vec<Settle>,) = parse(body)?;
            answer(tasks.settle(&settle).await)
        }
        TaskCall::Change => {
            let (id, op): (TaskId, TaskOp) = parse(body)?;
            if !matches!(op, TaskOp::Cancel(_) | TaskOp::Retry(_) | TaskOp::Update(_) | TaskOp::Want(_)) {
                return Err(Problem::invalid("a change that is made by hand is to cancel, retry or update"));
            }
            let changed = tasks.change(id, &op).await;
            if let Ok(Some((_, task))) = &changed {
                notify_worker(&*store, task).await;
            }
            answer(changed)
        }
        TaskCall::Recover => {
            let (limit,): (u32,) = parse(body)?;
            answer(tasks.recover(limit.min(MOST_AT_ONCE)).await)
        }
        TaskCall::Get => {
            let (id,): (TaskId,) = parse(body)?;
            answer(tasks.get(id).await)
        }
        TaskCall::Keyed => {
            let (queue, key): (QueueName, TaskKey) = parse(body)?;
            answer(tasks.keyed(&queue, &key).await)
        }
        TaskCall::List => {
            let (ask,): (ListTasks,) = parse(body)?;
            answer(tasks.list(&ask).await)
        }
        TaskCall::Queues => answer(tasks.queues().await),
        TaskCall::Queue => {
            let (queue,): (QueueName,) = parse(body)?;
            answer(tasks.queue(&queue).await)
        }
        TaskCall::Pause => {
            let (queue, pause): (QueueName, Option<Pause>) = parse(body)?;
            answer(tasks.pause(&queue, pause).await)
        }
        TaskCall::Workers => answer(tasks.workers().await),
        TaskCall::Archive => {
            let (which,): (Finished,) = parse(body)?;
            answer(tasks.archive(&which).await)
        }
        TaskCall::Purge => {
            let (which,): (Finished,) = parse(body)?;
            answer(tasks.purge(&which).await)
        }
        TaskCall::Now => answer(tasks.now().await),
    }
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
