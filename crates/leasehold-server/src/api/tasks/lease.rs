//! Taking tasks, and waiting for some.

use axum::extract::{Path, State};
use leasehold::client::TaskView;
use leasehold::model::{LeaseTasks, QueueName, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::values::{MOST, lease_ttl, wrong};
use super::workers::{Known, WorkerBody};
use crate::access::{Caller, Worker};
use crate::api::lease::wait_time;
use crate::body::MaybeJson;
use crate::described::{PageSize, TtlSeconds, WaitSeconds};
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(lease))
}

/// Who takes tasks, and how many.
#[derive(Deserialize, ToSchema, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaseTasksBody {
    /// Who asks, for the list of workers. If not said, an id is made up for these leases alone, and it is not listed.
    worker: Option<WorkerBody>,
    /// At most so many, 1 to 1000; 1 if not said.
    #[schema(value_type = Option<PageSize>)]
    max: Option<u32>,
    /// How long each lease lasts without a heartbeat; by default 30, or as the server is set up.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// If there is nothing, wait for so long until there is, at most 60; 0 if not said.
    #[schema(value_type = Option<WaitSeconds>)]
    wait_seconds: Option<f64>,
}

/// The tasks that the worker has now.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct LeaseReply {
    /// Always true.
    success: bool,
    /// The worker that has them.
    worker: WorkerId,
    /// The tasks, next first, each with the token of its lease; none if none came in time.
    tasks: Vec<TaskView>,
}

/// Take tasks from a queue, and wait for some if there are none.
///
/// A task is leased only when the answer is about to be sent, so that a client that goes away while it waits takes nothing. From
/// then on nobody else has it as long as heartbeats come in time. A queue that does not exist yet can be waited on.
/// A task with a `lock` is given to one worker at a time; its worker takes that lock itself before it begins, and gives the
/// task back with `release` and `retryInSeconds` if somebody else has it.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/lease", tag = "tasks", operation_id = "leaseTasks",
    params(("queue" = QueueName, Path, description = "The queue; a '/' is written %2F")),
    request_body = Option<LeaseTasksBody>,
    responses((status = OK, description = "What there was, perhaps nothing", body = LeaseReply)),
)]
async fn lease(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(queue): Path<String>,
    MaybeJson(body): MaybeJson<LeaseTasksBody>,
) -> Answer<axum::Json<LeaseReply>> {
    app.refuse_when_draining()?;
    let (queue, tasks) = (QueueName::new(queue)?, app.leasehold().tasks()?);
    let max = match body.max.unwrap_or(1) {
        max if max > 0 && max as usize <= MOST => max,
        max => return Err(wrong("max", format!("{max} is out of bounds; it is 1 to {MOST}"))),
    };
    let ttl = lease_ttl(&app, body.ttl_seconds)?;
    let wait = wait_time(&app, body.wait_seconds.unwrap_or(0.0))?;
    let worker = match body.worker {
        Some(worker) => {
            // It says nothing while it waits here.
            let every = wait.max(ttl.as_duration() / 3);
            let info = worker.info(caller.who(), Known { queues: vec![queue.clone()], busy: 0, every })?;
            tasks.heartbeat(&info, &[], ttl).await?;
            info.id
        }
        None => caller.who().worker(WorkerId::from_uuid(Uuid::new_v4())),
    };
    // What such a worker does with a task is not known here: each lease counts as an attempt from the start.
    let ask = LeaseTasks::new(worker, vec![queue], max, ttl);
    let leased = app.unless_draining(async { Ok(tasks.lease(&ask, wait).await?) }).await?;
    app.task_owners().note(caller.who(), &leased);
    let tasks = leased.iter().map(TaskView::from).collect();
    Ok(axum::Json(LeaseReply { success: true, worker, tasks }))
}
