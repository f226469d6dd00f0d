//! Leases of tasks for workers elsewhere, their heartbeats, and the list of workers.

use std::time::Duration;

use axum::extract::Path;
use leasehold::client::{CancelView, TaskView, WorkerView};
use leasehold::model::{
    HeartbeatResult, HeldTask, LeaseTasks, Message, Progress, QueueName, TaskId, Token, Ttl, WorkerId,
    WorkerInfo,
};
use leasehold::{Error, Tasks};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::values::{LeaseLost, MAX_TASKS_PER_REQUEST, NotFound, Success, bounded, lease_ttl, ttl};
use crate::access::{Caller, Identity, Reader, Worker};
use crate::api::lease::wait_time;
use crate::openapi::roles::routes;
use crate::openapi::schemas::{
    Count, LongCount, PageSize, PositiveSeconds, TtlSeconds, WaitSeconds, WorkerText,
};
use crate::problem::{ApiResult, Problem, Reply};
use crate::request::body::{Json, MaybeJson};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(lease))
        .routes(routes!(heartbeat_task))
        .routes(routes!(heartbeat_worker))
        .routes(routes!(list_workers))
        .routes(routes!(deregister))
}

/// Options of a lease request.
#[derive(Deserialize, ToSchema, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaseTasksBody {
    /// Description of the worker, for the list of workers. Without it, the server generates a
    /// worker id for these leases and does not list the worker.
    worker: Option<WorkerBody>,
    /// Maximum number of tasks, 1 to 1000. Default: 1.
    #[schema(value_type = Option<PageSize>)]
    max: Option<u32>,
    /// Time in seconds after which each lease expires without a heartbeat. Default: the `ttl` of
    /// the server's settings, or 30.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// Maximum time in seconds to wait for a task, at most 60. Default: 0.
    #[schema(value_type = Option<WaitSeconds>)]
    wait_seconds: Option<f64>,
}

/// Leased tasks.
#[derive(Serialize, ToSchema)]
struct LeaseTasksReply {
    /// Always true.
    success: bool,
    /// Id of the worker that holds the leases.
    worker: WorkerId,
    /// Tasks in the order of execution, each with the fencing token of its lease; empty if the wait
    /// timed out.
    tasks: Vec<TaskView>,
}

/// Leases tasks from a queue, optionally waiting for them.
///
/// The server leases a task only when it is about to send the response, so a client that
/// disconnects while it waits gets no task. From then on no other worker gets the task while
/// heartbeats arrive in time. A client can wait on a queue that does not exist yet. A task with a
/// `lock` is leased to one worker at a time; the worker acquires that lock itself before it starts,
/// and returns the task with `release` and `retryInSeconds` if the lock is held.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/lease", tag = "tasks", operation_id = "leaseTasks",
    params(("queue" = QueueName, Path, description = "Name of the queue; encode '/' as %2F")),
    request_body = Option<LeaseTasksBody>,
    responses((status = OK, description = "Leased tasks, possibly none", body = LeaseTasksReply)),
)]
async fn lease(
    app: App,
    caller: Caller<Worker>,
    Path(queue): Path<String>,
    MaybeJson(body): MaybeJson<LeaseTasksBody>,
) -> Reply<LeaseTasksReply> {
    app.refuse_when_draining()?;
    let (queue, tasks) = (QueueName::new(queue)?, app.leasehold.tasks()?);
    let max = body.max.unwrap_or(1);
    if max == 0 || max as usize > MAX_TASKS_PER_REQUEST {
        let reason = format!("invalid value {max}: must be 1 to {MAX_TASKS_PER_REQUEST}");
        return Err(Problem::invalid(reason).at("max"));
    }
    let ttl = lease_ttl(&app, body.ttl_seconds)?;
    let wait = wait_time(&app, body.wait_seconds.unwrap_or(0.0))?;
    let worker = match body.worker {
        Some(worker) => {
            // The worker sends no heartbeat while this request waits.
            let every = wait.max(ttl.as_duration() / 3);
            let info = worker.info(&caller, vec![queue.clone()], 0, every)?;
            tasks.heartbeat(&info, &[], ttl).await?;
            info.id
        }
        None => caller.worker(WorkerId::from_uuid(Uuid::new_v4())),
    };
    // The server does not know when an external worker starts a task, so each lease counts as an
    // attempt.
    let request = LeaseTasks::new(worker, vec![queue], max, ttl);
    let leased = app.unless_draining(tasks.lease(&request, wait)).await??;
    app.task_owners.record(&caller, &leased);
    let tasks = leased.iter().map(TaskView::from).collect();
    Ok(axum::Json(LeaseTasksReply { success: true, worker, tasks }))
}

/// Progress of a task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProgressBody {
    /// Amount of completed work.
    #[schema(value_type = LongCount)]
    done: u64,
    /// Total amount of work, if known.
    #[schema(value_type = Option<LongCount>)]
    of: Option<u64>,
    /// Description of the current step; truncated to 8 KiB.
    note: Option<String>,
}

impl From<ProgressBody> for Progress {
    fn from(body: ProgressBody) -> Self {
        Self { done: body.done, of: body.of, note: body.note.map(Message::new) }
    }
}

/// Heartbeat for one task.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TaskHeartbeatBody {
    /// Fencing token of the lease.
    token: Token,
    /// TTL in seconds, counted from now. Default: the `ttl` of the server's settings, or 30. Must
    /// be sent again if the lease request set another value.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// Progress of the task.
    progress: Option<ProgressBody>,
    /// Description of the worker, for the list of workers. Default: the last description that the
    /// worker sent.
    worker: Option<WorkerBody>,
}

/// Response to a heartbeat for one task.
#[derive(Serialize, ToSchema)]
struct TaskHeartbeatReply {
    /// Always true.
    success: bool,
    /// Cancellation request, if there is one. The worker must stop the task and report this with
    /// `abort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel: Option<CancelView>,
}

/// Extends the lease of a task and reports its progress.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/heartbeat", tag = "tasks", operation_id = "heartbeatTask",
    params(("id" = TaskId, Path, description = "Id of the task")), request_body = TaskHeartbeatBody,
    responses((status = OK, description = "The lease was extended", body = TaskHeartbeatReply), LeaseLost, NotFound),
)]
async fn heartbeat_task(
    app: App,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<TaskHeartbeatBody>,
) -> Reply<TaskHeartbeatReply> {
    let (id, tasks) = (id.parse()?, app.leasehold.tasks()?);
    let ttl = lease_ttl(&app, body.ttl_seconds)?;
    let mut token = body.token;
    must_own(&app, &caller, vec![(id, &mut token)]).await?;
    let info = match body.worker {
        Some(worker) => worker.info(&caller, Vec::new(), 1, ttl.as_duration() / 3)?,
        // The list of workers keeps the last description of the worker; a worker without a description
        // is not listed.
        None => {
            let task = tasks.get(id).await?;
            let worker = task.worker.filter(|_| task.token == token);
            WorkerInfo::only(worker.ok_or(Error::TaskLost { task: id })?)
        }
    };
    let held = HeldTask { progress: body.progress.map(Into::into), ..HeldTask::new(id, token) };
    match tasks.heartbeat(&info, &[held], ttl).await?.pop() {
        Some(HeartbeatResult::Extended(cancel)) => {
            let cancel = cancel.as_ref().map(CancelView::from);
            Ok(axum::Json(TaskHeartbeatReply { success: true, cancel }))
        }
        _ => Err(lease_error(&tasks, id).await.into()),
    }
}

/// Rejects a caller that does not own one of these leases. Replaces the tokens of leases that do not exist by
/// one that no lease has.
pub(crate) async fn must_own(
    app: &App,
    caller: &Caller<Worker>,
    leases: Vec<(TaskId, &mut Token)>,
) -> ApiResult<()> {
    let store = app.leasehold.store();
    match store.tasks() {
        Some(tasks) => app.task_owners.check(tasks, caller, leases).await,
        None => Ok(()),
    }
}

/// Returns the error for a missing lease: the task does not exist, or its lease has ended.
pub(super) async fn lease_error(tasks: &Tasks, id: TaskId) -> Error {
    match tasks.get(id).await {
        Err(error @ Error::UnknownTask(_)) => error,
        _ => Error::TaskLost { task: id },
    }
}

/// Heartbeat of a worker for all its leases.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WorkerHeartbeatBody {
    /// Description of the worker.
    worker: WorkerBody,
    /// TTL of all listed leases in seconds, counted from now. Default: the `ttl` of the server's
    /// settings, or 30.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// Leases of the worker, at most 1000. An empty list only registers the worker.
    #[serde(default)]
    #[schema(max_items = 1000)]
    tasks: Vec<HeldTaskBody>,
}

/// Lease of a worker.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HeldTaskBody {
    /// Id of the task.
    id: TaskId,
    /// Fencing token of the lease.
    token: Token,
    /// Progress of the task.
    progress: Option<ProgressBody>,
}

/// Response to the heartbeat of a worker.
#[derive(Serialize, ToSchema)]
struct WorkerHeartbeatReply {
    /// Always true.
    success: bool,
    /// Id under which the worker leases tasks. With an API token it differs from the id of the request.
    worker: WorkerId,
    /// Results in the order of the request.
    tasks: Vec<TaskHeartbeatItem>,
}

/// Result for one lease.
#[derive(Serialize, ToSchema)]
struct TaskHeartbeatItem {
    /// Id of the task.
    id: TaskId,
    /// Whether the lease was extended. If not, another worker may have the task, and this worker
    /// must stop it.
    kept: bool,
    /// Cancellation request, if there is one. The worker must stop the task and report this with
    /// `abort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel: Option<CancelView>,
}

/// Registers a worker and extends all its leases in one request.
#[utoipa::path(
    post, path = "/api/v1/tasks/heartbeat", tag = "tasks", operation_id = "heartbeatTasks",
    request_body = WorkerHeartbeatBody,
    responses((status = OK, description = "Results; also returned if some leases are lost", body = WorkerHeartbeatReply)),
)]
async fn heartbeat_worker(
    app: App,
    caller: Caller<Worker>,
    Json(body): Json<WorkerHeartbeatBody>,
) -> Reply<WorkerHeartbeatReply> {
    bounded("tasks", &body.tasks)?;
    let tasks = app.leasehold.tasks()?;
    let ttl = lease_ttl(&app, body.ttl_seconds)?;
    let busy = u32::try_from(body.tasks.len()).unwrap_or(u32::MAX);
    let info = body.worker.info(&caller, Vec::new(), busy, ttl.as_duration() / 3)?;
    let held = |held: HeldTaskBody| HeldTask {
        progress: held.progress.map(Into::into),
        ..HeldTask::new(held.id, held.token)
    };
    let mut held: Vec<HeldTask> = body.tasks.into_iter().map(held).collect();
    let leases = held.iter_mut().map(|held| (held.id, &mut held.token)).collect();
    must_own(&app, &caller, leases).await?;
    let results = tasks.heartbeat(&info, &held, ttl).await?;
    let item = |(held, result): (&HeldTask, &HeartbeatResult)| match result {
        HeartbeatResult::Extended(cancel) => {
            TaskHeartbeatItem { id: held.id, kept: true, cancel: cancel.as_ref().map(CancelView::from) }
        }
        // Instead of `Busy`, `Tasks::heartbeat` returns an error.
        HeartbeatResult::Lost | HeartbeatResult::Busy => {
            TaskHeartbeatItem { id: held.id, kept: false, cancel: None }
        }
    };
    let tasks = held.iter().zip(&results).map(item).collect();
    Ok(axum::Json(WorkerHeartbeatReply { success: true, worker: info.id, tasks }))
}

/// Minimum default heartbeat interval. A worker is considered dead after three missed heartbeats.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Description of a worker, for the list of workers.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WorkerBody {
    /// Id of the worker: a UUID, new for each start.
    id: Uuid,
    /// Name of the worker's host.
    #[schema(value_type = Option<WorkerText>)]
    host: Option<String>,
    /// Process id of the worker.
    #[schema(value_type = Option<Count>)]
    pid: Option<u32>,
    /// Version of the worker.
    #[schema(value_type = Option<WorkerText>)]
    version: Option<String>,
    /// Queues from which the worker leases tasks.
    #[schema(value_type = Option<Vec<QueueName>>, max_items = 1000)]
    queues: Option<Vec<String>>,
    /// Maximum number of concurrent tasks.
    #[schema(value_type = Option<Count>)]
    slots: Option<u32>,
    /// Number of running tasks.
    #[schema(value_type = Option<Count>)]
    busy: Option<u32>,
    /// Whether the worker only finishes its tasks and leases no new ones.
    draining: Option<bool>,
    /// Heartbeat interval in seconds. A worker is shown as dead after three missed heartbeats.
    #[schema(value_type = Option<PositiveSeconds>)]
    every_seconds: Option<f64>,
}

impl WorkerBody {
    /// Returns the description. The arguments are the values for fields that the request omits.
    fn info(
        self,
        identity: &Identity,
        queues: Vec<QueueName>,
        busy: u32,
        every: Duration,
    ) -> ApiResult<WorkerInfo> {
        let queues = match self.queues {
            Some(names) => names.into_iter().map(QueueName::new).collect::<Result<_, _>>()?,
            None => queues,
        };
        let busy = self.busy.unwrap_or(busy);
        let every = match self.every_seconds {
            Some(seconds) => ttl("worker.everySeconds", seconds)?,
            None => Ttl::new(every.max(MIN_HEARTBEAT_INTERVAL)).unwrap_or(Ttl::MAX),
        };
        let info = WorkerInfo {
            id: identity.worker(WorkerId::from_uuid(self.id)),
            host: self.host.unwrap_or_else(|| "unknown".to_owned()),
            pid: self.pid.unwrap_or(0),
            version: self.version.unwrap_or_default(),
            queues,
            slots: self.slots.unwrap_or_else(|| busy.max(1)),
            busy,
            draining: self.draining.unwrap_or(false),
            every,
        };
        info.check().map_err(|error| Problem::invalid(error).at("worker"))
    }
}

/// List of workers.
#[derive(Serialize, ToSchema)]
struct WorkerList {
    /// Workers with a heartbeat within the last hour, oldest first.
    workers: Vec<WorkerView>,
}

/// Lists the workers with a heartbeat within the last hour, over all servers.
#[utoipa::path(
    get, path = "/api/v1/workers", tag = "tasks", operation_id = "listWorkers",
    responses((status = OK, body = WorkerList)),
)]
async fn list_workers(app: App, _: Caller<Reader>) -> Reply<WorkerList> {
    let workers = app.leasehold.tasks()?.workers().await?;
    let now = app.leasehold.now().await?;
    let workers = workers.iter().map(|worker| WorkerView::new(worker, now)).collect();
    Ok(axum::Json(WorkerList { workers }))
}

/// Deregisters a worker.
///
/// Its tasks return to their queues when their leases expire.
#[utoipa::path(
    delete, path = "/api/v1/workers/{id}", tag = "tasks", operation_id = "removeWorker",
    params(("id" = WorkerId, Path, description = "Id of the worker")),
    responses((status = OK, description = "Removed, or not listed before", body = Success)),
)]
async fn deregister(app: App, caller: Caller<Worker>, Path(id): Path<String>) -> Reply<Success> {
    app.leasehold.tasks()?.deregister(caller.worker(id.parse()?)).await?;
    Ok(Success::json())
}
