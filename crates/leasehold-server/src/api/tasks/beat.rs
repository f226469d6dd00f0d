//! Signs of life: for one lease, or for all of a worker at once.

use axum::extract::{Path, State};
use leasehold::client::CancelView;
use leasehold::model::{HeartbeatResult, HeldTask, Message, Progress, TaskId, Token, WorkerInfo};
use leasehold::{Error, Tasks};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::problems::{Lost, Missing};
use super::values::{bounded, lease_ttl, task_id};
use super::workers::{Known, WorkerBody};
use crate::access::{Caller, Worker};
use crate::body::Json;
use crate::described::{LongCount, TtlSeconds};
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(beat_one)).routes(routes!(beat_all))
}

/// How far a task has come.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProgressBody {
    /// So much is done…
    #[schema(value_type = LongCount)]
    done: u64,
    /// …of so much, if that is known.
    #[schema(value_type = Option<LongCount>)]
    of: Option<u64>,
    /// What is being done; cut after 8 KiB.
    note: Option<String>,
}

impl From<ProgressBody> for Progress {
    fn from(body: ProgressBody) -> Self {
        Self { done: body.done, of: body.of, note: body.note.map(Message::new) }
    }
}

/// A sign of life for one task.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BeatBody {
    /// The token of the lease.
    token: Token,
    /// The lease lasts so long from now; 30 if not said. Say the same as at the lease.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// How far the task has come.
    progress: Option<ProgressBody>,
    /// Who works, for the list of workers; if not said, as the worker that has the task said last.
    worker: Option<WorkerBody>,
}

/// The lease goes on.
#[derive(Serialize, ToSchema)]
struct BeatReply {
    /// Always true.
    success: bool,
    /// Somebody wants the task stopped: stop, and say so with `abort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel: Option<CancelView>,
}

/// Say that a task is still being worked on, and how far it has come.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/heartbeat", tag = "tasks", operation_id = "heartbeatTask",
    params(("id" = TaskId, Path, description = "The task")),
    request_body = BeatBody,
    responses((status = OK, description = "The lease goes on", body = BeatReply), Lost, Missing),
)]
async fn beat_one(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<BeatBody>,
) -> Answer<axum::Json<BeatReply>> {
    let (id, tasks) = (task_id(&id)?, app.leasehold().tasks()?);
    let ttl = lease_ttl(&app, body.ttl_seconds)?;
    must_own(&app, &caller, [(id, body.token)]).await?;
    let info = match body.worker {
        Some(worker) => {
            worker.info(caller.who(), Known { queues: Vec::new(), busy: 1, every: ttl.as_duration() / 3 })?
        }
        None => worker_of(&tasks, id).await?,
    };
    let held = HeldTask { progress: body.progress.map(Into::into), ..HeldTask::new(id, body.token) };
    match tasks.heartbeat(&info, &[held], ttl).await?.pop() {
        Some(HeartbeatResult::Extended(asked)) => {
            Ok(axum::Json(BeatReply { success: true, cancel: asked.as_ref().map(CancelView::from) }))
        }
        _ => Err(lost(&tasks, id).await.into()),
    }
}

/// Refuses a caller to whom one of these leases does not belong.
pub(crate) async fn must_own(
    app: &App,
    caller: &Caller<Worker>,
    leases: impl IntoIterator<Item = (TaskId, Token)> + Send,
) -> Answer<()> {
    let store = app.leasehold().store();
    match store.tasks() {
        Some(tasks) => app.task_owners().check(tasks, caller.who(), leases).await,
        None => Ok(()),
    }
}

/// The worker that has a task. It is listed as it said last; if it never said anything, it is not listed.
async fn worker_of(tasks: &Tasks, id: TaskId) -> Result<WorkerInfo, Error> {
    let worker = tasks.get(id).await?.worker.ok_or(Error::TaskLost { task: id })?;
    Ok(WorkerInfo::only(worker))
}

/// Why a lease is not there: the task is gone, or somebody else has it.
pub(super) async fn lost(tasks: &Tasks, id: TaskId) -> Error {
    match tasks.get(id).await {
        Err(error @ Error::UnknownTask(_)) => error,
        _ => Error::TaskLost { task: id },
    }
}

/// Signs of life of one worker.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BeatsBody {
    /// Who works.
    worker: WorkerBody,
    /// All these leases last so long from now; 30 if not said.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// The leases that it has, at most 1000. Also none: then it only says that it is there.
    #[serde(default)]
    #[schema(max_items = 1000)]
    tasks: Vec<HeldBody>,
}

/// A lease that a worker says it still has.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HeldBody {
    /// The task.
    id: TaskId,
    /// The token of the lease.
    token: Token,
    /// How far it has come.
    progress: Option<ProgressBody>,
}

/// What became of each lease.
#[derive(Serialize, ToSchema)]
struct BeatsReply {
    /// Always true.
    success: bool,
    /// In the order of the request.
    tasks: Vec<BeatItem>,
}

/// What became of a lease.
#[derive(Serialize, ToSchema)]
struct BeatItem {
    /// The task.
    id: TaskId,
    /// Whether the lease goes on. If not, somebody else may have the task: stop working on it.
    kept: bool,
    /// Somebody wants it stopped: stop, and say so with `abort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel: Option<CancelView>,
}

/// Say that a worker is there, and that it still works on all these tasks: one request for all its leases.
#[utoipa::path(
    post, path = "/api/v1/tasks/heartbeat", tag = "tasks", operation_id = "heartbeatTasks",
    request_body = BeatsBody,
    responses((status = OK, description = "Also if some leases are lost", body = BeatsReply)),
)]
async fn beat_all(
    State(app): State<App>,
    caller: Caller<Worker>,
    Json(body): Json<BeatsBody>,
) -> Answer<axum::Json<BeatsReply>> {
    bounded("tasks", &body.tasks)?;
    let tasks = app.leasehold().tasks()?;
    let ttl = lease_ttl(&app, body.ttl_seconds)?;
    let busy = u32::try_from(body.tasks.len()).unwrap_or(u32::MAX);
    let info =
        body.worker.info(caller.who(), Known { queues: Vec::new(), busy, every: ttl.as_duration() / 3 })?;
    let held = |held: HeldBody| HeldTask {
        progress: held.progress.map(Into::into),
        ..HeldTask::new(held.id, held.token)
    };
    let held: Vec<HeldTask> = body.tasks.into_iter().map(held).collect();
    must_own(&app, &caller, held.iter().map(|held| (held.id, held.token))).await?;
    let beats = tasks.heartbeat(&info, &held, ttl).await?;
    let item = |(held, beat): (&HeldTask, &HeartbeatResult)| match beat {
        HeartbeatResult::Extended(asked) => {
            BeatItem { id: held.id, kept: true, cancel: asked.as_ref().map(CancelView::from) }
        }
        HeartbeatResult::Lost => BeatItem { id: held.id, kept: false, cancel: None },
    };
    Ok(axum::Json(BeatsReply { success: true, tasks: held.iter().zip(&beats).map(item).collect() }))
}
