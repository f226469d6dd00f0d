//! Queues: listing, pausing, and the retention of finished tasks; recovery of expired leases, and purge.

use axum::extract::Path;
use leasehold::client::{QueueView, RetentionView};
use leasehold::model::{FinishedFilter, QueueName, Recovered, Retention, TaskState, Ttl};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::get::ReasonBody;
use super::values::{NotFound, time, ttl};
use crate::access::{Admin, Caller, Operator, Reader, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{FinishedState, PositiveSeconds};
use crate::problem::{ApiResult, Problem, Reply};
use crate::request::body::{Json, MaybeJson, Query};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(get_retention, set_retention, reset_retention))
        .routes(routes!(recover))
        .routes(routes!(purge))
}

/// List of queues.
#[derive(Serialize, ToSchema)]
struct QueueList {
    /// Queues, sorted by name.
    queues: Vec<QueueView>,
}

/// State of a queue.
#[derive(Serialize, ToSchema)]
struct QueueReply {
    /// Always true.
    success: bool,
    /// Name of the queue.
    queue: String,
    /// Whether the queue is paused: no task is leased from it.
    paused: bool,
}

/// Retention of the finished tasks of a queue.
#[derive(Serialize, ToSchema)]
struct RetentionReply {
    /// Always true.
    success: bool,
    /// Name of the queue.
    queue: String,
    /// Retention in seconds; `null` means forever.
    retention: RetentionView,
}

/// Retention of finished tasks in seconds; `null` means forever. Omitted fields keep their values.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "every time in the API has its unit in its name")]
struct RetentionBody {
    /// Retention of succeeded tasks.
    #[serde(default)]
    #[schema(value_type = Option<PositiveSeconds>)]
    succeeded_seconds: KeepFor,
    /// Retention of failed tasks.
    #[serde(default)]
    #[schema(value_type = Option<PositiveSeconds>)]
    failed_seconds: KeepFor,
    /// Retention of aborted tasks.
    #[serde(default)]
    #[schema(value_type = Option<PositiveSeconds>)]
    aborted_seconds: KeepFor,
}

#[derive(Clone, Copy, Default)]
enum KeepFor {
    #[default]
    Unchanged,
    Forever,
    Seconds(f64),
}

impl<'de> Deserialize<'de> for KeepFor {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(value)?.map_or(Self::Forever, Self::Seconds))
    }
}

impl KeepFor {
    fn resolve(self, field: &str, current: Option<Ttl>) -> ApiResult<Option<Ttl>> {
        match self {
            Self::Unchanged => Ok(current),
            Self::Forever => Ok(None),
            Self::Seconds(seconds) => ttl(field, seconds).map(Some),
        }
    }
}

/// Lists the queues with their numbers of tasks.
#[utoipa::path(
    get, path = "/api/v1/queues", tag = "tasks", operation_id = "listQueues",
    responses((status = OK, body = QueueList)),
)]
async fn list(app: App, _: Caller<Reader>) -> Reply<QueueList> {
    let queues = app.leasehold.tasks()?.queues().await?;
    Ok(axum::Json(QueueList { queues: queues.iter().map(QueueView::from).collect() }))
}

/// Pauses a queue.
///
/// No task is leased from it until it is resumed. Running tasks continue.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/pause", tag = "tasks", operation_id = "pauseQueue",
    params(("queue" = QueueName, Path, description = "Name of the queue; encode '/' as %2F")),
    request_body = Option<ReasonBody>,
    responses((status = OK, body = QueueReply), NotFound),
)]
async fn pause(
    app: App,
    caller: Caller<Operator>,
    Path(queue): Path<String>,
    MaybeJson(body): MaybeJson<ReasonBody>,
) -> Reply<QueueReply> {
    let queue = QueueName::new(queue)?;
    app.leasehold.tasks()?.pause(&queue, caller.holder()?, body.reason).await?;
    Ok(axum::Json(QueueReply { success: true, queue: queue.into(), paused: true }))
}

/// Resumes a paused queue.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/resume", tag = "tasks", operation_id = "resumeQueue",
    params(("queue" = QueueName, Path, description = "Name of the queue; encode '/' as %2F")),
    responses((status = OK, body = QueueReply), NotFound),
)]
async fn resume(app: App, _: Caller<Operator>, Path(queue): Path<String>) -> Reply<QueueReply> {
    let queue = QueueName::new(queue)?;
    app.leasehold.tasks()?.resume(&queue).await?;
    Ok(axum::Json(QueueReply { success: true, queue: queue.into(), paused: false }))
}

/// Returns the retention of the finished tasks of a queue and their keys.
#[utoipa::path(
    get, path = "/api/v1/queues/{queue}/retention", tag = "tasks", operation_id = "getRetention",
    params(("queue" = QueueName, Path, description = "Name of the queue; encode '/' as %2F")),
    responses((status = OK, body = RetentionReply)),
)]
async fn get_retention(app: App, _: Caller<Reader>, Path(queue): Path<String>) -> Reply<RetentionReply> {
    let queue = QueueName::new(queue)?;
    let retention = app.leasehold.tasks()?.retention(&queue).await?;
    Ok(retention_reply(queue, &retention))
}

/// Sets the retention of the finished tasks of a queue.
///
/// The setting is stored in the store and applies to every server and worker.
#[utoipa::path(
    put, path = "/api/v1/queues/{queue}/retention", tag = "tasks", operation_id = "setRetention",
    params(("queue" = QueueName, Path, description = "Name of the queue; encode '/' as %2F")),
    request_body = RetentionBody,
    responses((status = OK, body = RetentionReply)),
)]
async fn set_retention(
    app: App,
    _: Caller<Admin>,
    Path(queue): Path<String>,
    Json(body): Json<RetentionBody>,
) -> Reply<RetentionReply> {
    let queue = QueueName::new(queue)?;
    let tasks = app.leasehold.tasks()?;
    let current = tasks.retention(&queue).await?;
    let requested = Retention {
        succeeded: body.succeeded_seconds.resolve("succeededSeconds", current.succeeded)?,
        failed: body.failed_seconds.resolve("failedSeconds", current.failed)?,
        aborted: body.aborted_seconds.resolve("abortedSeconds", current.aborted)?,
    };
    let retention = tasks.set_retention(Some(&queue), Some(requested)).await?;
    Ok(retention_reply(queue, &retention))
}

/// Removes the retention of a queue, so that the setting for all queues applies.
#[utoipa::path(
    delete, path = "/api/v1/queues/{queue}/retention", tag = "tasks", operation_id = "resetRetention",
    params(("queue" = QueueName, Path, description = "Name of the queue; encode '/' as %2F")),
    responses((status = OK, body = RetentionReply)),
)]
async fn reset_retention(app: App, _: Caller<Admin>, Path(queue): Path<String>) -> Reply<RetentionReply> {
    let queue = QueueName::new(queue)?;
    let retention = app.leasehold.tasks()?.set_retention(Some(&queue), None).await?;
    Ok(retention_reply(queue, &retention))
}

fn retention_reply(queue: QueueName, retention: &Retention) -> axum::Json<RetentionReply> {
    axum::Json(RetentionReply { success: true, queue: queue.into(), retention: retention.into() })
}

const BATCH_SIZE: u32 = 500;
/// Maximum number of calls of the store per request, so that a request ends in bounded time.
const MAX_BATCHES: usize = 100;

/// Result of a recovery.
#[derive(Serialize, ToSchema, Default)]
struct RecoverReply {
    /// Always true.
    success: bool,
    /// Number of tasks whose lease had expired and that can run again.
    returned: u32,
    /// Number of tasks whose lease had expired and that have no attempt left.
    failed: u32,
    /// Number of tasks whose lease had expired and whose cancellation was requested.
    aborted: u32,
    /// Number of scheduled tasks that became due.
    promoted: u32,
}

/// Ends expired leases and makes due tasks ready.
///
/// Every worker and the server itself do the same periodically.
#[utoipa::path(
    post, path = "/api/v1/tasks/recover", tag = "tasks", operation_id = "recoverTasks",
    responses((status = OK, body = RecoverReply)),
)]
async fn recover(app: App, _: Caller<Worker>) -> Reply<RecoverReply> {
    let tasks = app.leasehold.tasks()?;
    let mut total = RecoverReply { success: true, ..RecoverReply::default() };
    for _ in 0..MAX_BATCHES {
        let recovered @ Recovered { returned, failed, aborted, promoted } = tasks.recover(BATCH_SIZE).await?;
        total.returned += returned;
        total.failed += failed;
        total.aborted += aborted;
        total.promoted += promoted;
        if recovered.expired() < BATCH_SIZE {
            break;
        }
    }
    Ok(axum::Json(total))
}

/// Query for the tasks to delete.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PurgeQuery {
    /// Only tasks of this queue.
    #[param(value_type = Option<QueueName>)]
    queue: Option<String>,
    /// Only tasks with this final state: `succeeded`, `failed` or `aborted`.
    #[param(value_type = Option<FinishedState>)]
    state: Option<String>,
    /// Only tasks that finished before this time.
    #[param(format = DateTime, pattern = "^(19[7-9][0-9]|[2-9][0-9]{3})-")]
    before: String,
}

/// Result of a purge.
#[derive(Serialize, ToSchema)]
struct PurgeReply {
    /// Always true.
    success: bool,
    /// Number of deleted tasks.
    purged: u64,
    /// Whether more tasks may match; the client repeats the request to delete them.
    more: bool,
}

/// Deletes finished tasks and their keys, at most 50,000 per request.
#[utoipa::path(
    delete, path = "/api/v1/tasks", tag = "tasks", operation_id = "purgeTasks", params(PurgeQuery),
    responses((status = OK, body = PurgeReply)),
)]
async fn purge(app: App, caller: Caller<Admin>, Query(query): Query<PurgeQuery>) -> Reply<PurgeReply> {
    let state = query.state.map(|state| state.parse::<TaskState>()).transpose()?;
    if let Some(state) = state.filter(|state| !state.is_terminal()) {
        let reason = format!("invalid state {state}: must be succeeded, failed or aborted");
        return Err(Problem::invalid(reason).at("state"));
    }
    let queue = query.queue.map(QueueName::new).transpose()?;
    caller.must_reach_queues(queue.as_ref())?;
    let filter = FinishedFilter { queue, state, before: time("before", &query.before)?, limit: BATCH_SIZE };
    let (tasks, mut purged) = (app.leasehold.tasks()?, 0);
    for _ in 0..MAX_BATCHES {
        let deleted = tasks.purge(&filter).await?;
        purged += deleted;
        if deleted < u64::from(BATCH_SIZE) {
            return Ok(axum::Json(PurgeReply { success: true, purged, more: false }));
        }
    }
    Ok(axum::Json(PurgeReply { success: true, purged, more: true }))
}
