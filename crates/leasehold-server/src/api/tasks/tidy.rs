//! Recovery and purge.

use axum::extract::State;
use leasehold::model::{FinishedFilter, QueueName, Recovered, TaskState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::values::{time, wrong};
use crate::access::{Admin, Caller, Worker};
use crate::body::Query;
use crate::described::EndState;
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

/// So many at a time.
const BATCH: u32 = 500;
/// So often in one request, which has to end some time.
const MOST_BATCHES: usize = 100;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(recover)).routes(routes!(purge))
}

/// What a recovery found.
#[derive(Serialize, ToSchema, Default)]
struct RecoverReply {
    /// Always true.
    success: bool,
    /// Leases that had run out: these tasks can run again…
    returned: u32,
    /// …and these had no attempt left.
    failed: u32,
    /// These were to be stopped anyway.
    aborted: u32,
    /// Tasks whose time had come.
    promoted: u32,
}

/// End leases that have run out, and put in line what is due: what every worker and this server do now and then.
#[utoipa::path(
    post, path = "/api/v1/tasks/recover", tag = "tasks", operation_id = "recoverTasks",
    responses((status = OK, body = RecoverReply)),
)]
async fn recover(State(app): State<App>, _: Caller<Worker>) -> Answer<axum::Json<RecoverReply>> {
    let tasks = app.leasehold().tasks()?;
    let mut all = RecoverReply { success: true, ..RecoverReply::default() };
    for _ in 0..MOST_BATCHES {
        let found @ Recovered { returned, failed, aborted, promoted } = tasks.recover(BATCH).await?;
        all.returned += returned;
        all.failed += failed;
        all.aborted += aborted;
        all.promoted += promoted;
        if found.expired() < BATCH {
            break;
        }
    }
    Ok(axum::Json(all))
}

/// Which tasks to forget.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Of this queue.
    #[param(value_type = Option<QueueName>)]
    queue: Option<String>,
    /// That ended like this: succeeded, failed or aborted.
    #[param(value_type = Option<EndState>)]
    state: Option<String>,
    /// That ended before this time.
    #[param(format = DateTime, pattern = "^(19[7-9][0-9]|[2-9][0-9]{3})-")]
    before: String,
}

/// What was forgotten.
#[derive(Serialize, ToSchema)]
struct PurgeReply {
    /// Always true.
    success: bool,
    /// So many.
    purged: u64,
    /// Whether there may be more: ask again.
    more: bool,
}

/// Forget tasks that have ended, and their keys; at most 50,000 in one request.
#[utoipa::path(
    delete, path = "/api/v1/tasks", tag = "tasks", operation_id = "purgeTasks", params(Which),
    responses((status = OK, body = PurgeReply)),
)]
async fn purge(
    State(app): State<App>,
    caller: Caller<Admin>,
    Query(which): Query<Which>,
) -> Answer<axum::Json<PurgeReply>> {
    let state = which.state.map(|state| state.parse::<TaskState>()).transpose()?;
    if let Some(state) = state.filter(|state| !state.is_terminal()) {
        let why = format!("tasks that are {state} have not ended; write succeeded, failed or aborted");
        return Err(wrong("state", why));
    }
    let queue = which.queue.map(QueueName::new).transpose()?;
    caller.who().must_reach_queues(queue.as_ref())?;
    let which = FinishedFilter { queue, state, before: time("before", &which.before)?, limit: BATCH };
    let (tasks, mut purged) = (app.leasehold().tasks()?, 0);
    for _ in 0..MOST_BATCHES {
        let some = tasks.purge(&which).await?;
        purged += some;
        if some < u64::from(BATCH) {
            return Ok(axum::Json(PurgeReply { success: true, purged, more: false }));
        }
    }
    Ok(axum::Json(PurgeReply { success: true, purged, more: true }))
}
