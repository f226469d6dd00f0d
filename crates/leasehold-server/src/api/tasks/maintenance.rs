//! Recovery of expired leases, and purge of finished tasks.

use axum::extract::State;
use leasehold::model::{FinishedFilter, QueueName, Recovered, TaskState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::values::{invalid_field, time};
use crate::access::{Admin, Caller, Worker};
use crate::body::Query;
use crate::problem::ApiResult;
use crate::roles::routes;
use crate::schemas::FinishedState;
use crate::server::App;

/// Number of tasks per call of the store.
const BATCH_SIZE: u32 = 500;
/// Maximum number of calls of the store per request, so that a request ends in bounded time.
const MAX_BATCHES: usize = 100;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(recover)).routes(routes!(purge))
}

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
async fn recover(State(app): State<App>, _: Caller<Worker>) -> ApiResult<axum::Json<RecoverReply>> {
    let tasks = app.leasehold().tasks()?;
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
async fn purge(
    State(app): State<App>,
    caller: Caller<Admin>,
    Query(query): Query<PurgeQuery>,
) -> ApiResult<axum::Json<PurgeReply>> {
    let state = query.state.map(|state| state.parse::<TaskState>()).transpose()?;
    if let Some(state) = state.filter(|state| !state.is_terminal()) {
        let reason = format!("invalid state {state}: must be succeeded, failed or aborted");
        return Err(invalid_field("state", reason));
    }
    let queue = query.queue.map(QueueName::new).transpose()?;
    caller.identity().must_reach_queues(queue.as_ref())?;
    let filter = FinishedFilter { queue, state, before: time("before", &query.before)?, limit: BATCH_SIZE };
    let (tasks, mut purged) = (app.leasehold().tasks()?, 0);
    for _ in 0..MAX_BATCHES {
        let deleted = tasks.purge(&filter).await?;
        purged += deleted;
        if deleted < u64::from(BATCH_SIZE) {
            return Ok(axum::Json(PurgeReply { success: true, purged, more: false }));
        }
    }
    Ok(axum::Json(PurgeReply { success: true, purged, more: true }))
}
