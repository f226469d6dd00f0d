//! Queues, and pausing them.

use axum::extract::{Path, State};
use leasehold::client::QueueView;
use leasehold::model::QueueName;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::WhyBody;
use super::problems::{BadBody, Missing, Usual};
use crate::access::{Caller, Operator, Reader};
use crate::body::MaybeJson;
use crate::problem::Answer;
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(pause)).routes(routes!(resume))
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

/// The queues with their counts.
#[utoipa::path(
    get, path = "/api/v1/queues", tag = "tasks", operation_id = "listQueues",
    responses((status = OK, body = QueueList), Usual),
)]
async fn list(State(app): State<App>, _: Caller<Reader>) -> Answer<axum::Json<QueueList>> {
    let queues = app.leasehold().tasks()?.queues().await?;
    Ok(axum::Json(QueueList { queues: queues.iter().map(QueueView::from).collect() }))
}

/// Take nothing more from a queue until it is resumed; what runs goes on.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/pause", tag = "tasks", operation_id = "pauseQueue",
    params(("queue" = String, Path, description = "The queue; a '/' is written %2F")),
    request_body = Option<WhyBody>,
    responses((status = OK, body = QueueReply), Missing, Usual, BadBody),
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
    params(("queue" = String, Path, description = "The queue; a '/' is written %2F")),
    responses((status = OK, body = QueueReply), Missing, Usual),
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
