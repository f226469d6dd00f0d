//! Queues, and pausing them.

use axum::extract::{Path, State};
use leasehold::client::{QueueView, RetentionView};
use leasehold::model::{QueueName, Retention, Ttl};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::change::WhyBody;
use super::problems::Missing;
use super::values::ttl;
use crate::access::{Admin, Caller, Operator, Reader};
use crate::body::{Json, MaybeJson};
use crate::described::SomeSeconds;
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(pause)).routes(routes!(resume)).routes(routes!(
        retention,
        set_retention,
        reset_retention
    ))
}

/// The queues.
#[derive(Serialize, ToSchema)]
struct QueueList {
    /// By name.
    queues: Vec<QueueView>,
}

/// How a queue stands.
#[derive(Serialize, ToSchema)]
struct QueueReply {
    /// Always true.
    success: bool,
    /// The queue.
    queue: String,
    /// Whether nothing is taken from it for now.
    paused: bool,
}

/// How long finished tasks of a queue are kept.
#[derive(Serialize, ToSchema)]
struct RetentionReply {
    /// Always true.
    success: bool,
    /// The queue.
    queue: String,
    /// In seconds; `null` is for ever.
    retention: RetentionView,
}

/// How long finished tasks are to be kept, in seconds; `null` is for ever. What is left out stays as it is.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "every time in the API has its unit in its name")]
struct RetentionBody {
    /// Of tasks that succeeded.
    #[serde(default)]
    #[schema(value_type = Option<SomeSeconds>)]
    succeeded_seconds: Keep,
    /// Of tasks that failed.
    #[serde(default)]
    #[schema(value_type = Option<SomeSeconds>)]
    failed_seconds: Keep,
    /// Of tasks that were aborted.
    #[serde(default)]
    #[schema(value_type = Option<SomeSeconds>)]
    aborted_seconds: Keep,
}

/// What is said of one state.
#[derive(Clone, Copy, Default)]
enum Keep {
    #[default]
    AsBefore,
    Forever,
    Seconds(f64),
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(value)?.map_or(Self::Forever, Self::Seconds))
    }
}

impl Keep {
    fn or(self, field: &str, before: Option<Ttl>) -> Answer<Option<Ttl>> {
        match self {
            Self::AsBefore => Ok(before),
            Self::Forever => Ok(None),
            Self::Seconds(seconds) => ttl(field, seconds).map(Some),
        }
    }
}

/// The queues with their counts.
#[utoipa::path(
    get, path = "/api/v1/queues", tag = "tasks", operation_id = "listQueues",
    responses((status = OK, body = QueueList)),
)]
async fn list(State(app): State<App>, _: Caller<Reader>) -> Answer<axum::Json<QueueList>> {
    let queues = app.leasehold().tasks()?.queues().await?;
    Ok(axum::Json(QueueList { queues: queues.iter().map(QueueView::from).collect() }))
}

/// Take nothing more from a queue until it is resumed; what runs goes on.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/pause", tag = "tasks", operation_id = "pauseQueue",
    params(("queue" = QueueName, Path, description = "The queue; a '/' is written %2F")),
    request_body = Option<WhyBody>,
    responses((status = OK, body = QueueReply), Missing),
)]
async fn pause(
    State(app): State<App>,
    caller: Caller<Operator>,
    Path(queue): Path<String>,
    MaybeJson(why): MaybeJson<WhyBody>,
) -> Answer<axum::Json<QueueReply>> {
    let queue = QueueName::new(queue)?;
    app.leasehold().tasks()?.pause(&queue, caller.holder()?, why.reason).await?;
    Ok(axum::Json(QueueReply { success: true, queue: queue.into(), paused: true }))
}

/// Take tasks from a queue again.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/resume", tag = "tasks", operation_id = "resumeQueue",
    params(("queue" = QueueName, Path, description = "The queue; a '/' is written %2F")),
    responses((status = OK, body = QueueReply), Missing),
)]
async fn resume(
    State(app): State<App>,
    _: Caller<Operator>,
    Path(queue): Path<String>,
) -> Answer<axum::Json<QueueReply>> {
    let queue = QueueName::new(queue)?;
    app.leasehold().tasks()?.resume(&queue).await?;
    Ok(axum::Json(QueueReply { success: true, queue: queue.into(), paused: false }))
}

/// How long finished tasks of a queue are kept, with their keys.
#[utoipa::path(
    get, path = "/api/v1/queues/{queue}/retention", tag = "tasks", operation_id = "getRetention",
    params(("queue" = QueueName, Path, description = "The queue; a '/' is written %2F")),
    responses((status = OK, body = RetentionReply)),
)]
async fn retention(
    State(app): State<App>,
    _: Caller<Reader>,
    Path(queue): Path<String>,
) -> Answer<axum::Json<RetentionReply>> {
    let queue = QueueName::new(queue)?;
    let kept = app.leasehold().tasks()?.retention(&queue).await?;
    Ok(kept_for(queue, &kept))
}

/// Set how long finished tasks of a queue are kept. It is kept in the store, for every server and worker.
#[utoipa::path(
    put, path = "/api/v1/queues/{queue}/retention", tag = "tasks", operation_id = "setRetention",
    params(("queue" = QueueName, Path, description = "The queue; a '/' is written %2F")),
    request_body = RetentionBody,
    responses((status = OK, body = RetentionReply)),
)]
async fn set_retention(
    State(app): State<App>,
    _: Caller<Admin>,
    Path(queue): Path<String>,
    Json(body): Json<RetentionBody>,
) -> Answer<axum::Json<RetentionReply>> {
    let queue = QueueName::new(queue)?;
    let tasks = app.leasehold().tasks()?;
    let current = tasks.retention(&queue).await?;
    let wanted = Retention {
        succeeded: body.succeeded_seconds.or("succeededSeconds", current.succeeded)?,
        failed: body.failed_seconds.or("failedSeconds", current.failed)?,
        aborted: body.aborted_seconds.or("abortedSeconds", current.aborted)?,
    };
    let kept = tasks.set_retention(Some(&queue), Some(wanted)).await?;
    Ok(kept_for(queue, &kept))
}

/// Remove what was set for a queue: what is set for all queues holds again.
#[utoipa::path(
    delete, path = "/api/v1/queues/{queue}/retention", tag = "tasks", operation_id = "resetRetention",
    params(("queue" = QueueName, Path, description = "The queue; a '/' is written %2F")),
    responses((status = OK, body = RetentionReply)),
)]
async fn reset_retention(
    State(app): State<App>,
    _: Caller<Admin>,
    Path(queue): Path<String>,
) -> Answer<axum::Json<RetentionReply>> {
    let queue = QueueName::new(queue)?;
    let kept = app.leasehold().tasks()?.set_retention(Some(&queue), None).await?;
    Ok(kept_for(queue, &kept))
}

fn kept_for(queue: QueueName, kept: &Retention) -> axum::Json<RetentionReply> {
    axum::Json(RetentionReply { success: true, queue: queue.into(), retention: RetentionView::from(kept) })
}
