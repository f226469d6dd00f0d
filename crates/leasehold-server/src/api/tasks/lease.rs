//! Leases tasks and waits for them.

use axum::extract::{Path, State};
use leasehold::client::TaskView;
use leasehold::model::{LeaseTasks, QueueName, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::values::{MAX_TASKS_PER_REQUEST, invalid_field, lease_ttl};
use super::workers::{WorkerBody, WorkerDefaults};
use crate::access::{Caller, Worker};
use crate::api::lease::wait_time;
use crate::body::MaybeJson;
use crate::problem::ApiResult;
use crate::roles::routes;
use crate::schemas::{PageSize, TtlSeconds, WaitSeconds};
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(lease))
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
#[serde(rename_all = "camelCase")]
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
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(queue): Path<String>,
    MaybeJson(body): MaybeJson<LeaseTasksBody>,
) -> ApiResult<axum::Json<LeaseTasksReply>> {
    app.refuse_when_draining()?;
    let (queue, tasks) = (QueueName::new(queue)?, app.leasehold().tasks()?);
    let max = match body.max.unwrap_or(1) {
        max if max > 0 && max as usize <= MAX_TASKS_PER_REQUEST => max,
        max => {
            return Err(invalid_field(
                "max",
                format!("invalid value {max}: must be 1 to {MAX_TASKS_PER_REQUEST}"),
            ));
        }
    };
    let ttl = lease_ttl(&app, body.ttl_seconds)?;
    let wait = wait_time(&app, body.wait_seconds.unwrap_or(0.0))?;
    let worker = match body.worker {
        Some(worker) => {
            // The worker sends no heartbeat while this request waits.
            let every = wait.max(ttl.as_duration() / 3);
            let info = worker
                .info(caller.identity(), WorkerDefaults { queues: vec![queue.clone()], busy: 0, every })?;
            tasks.heartbeat(&info, &[], ttl).await?;
            info.id
        }
        None => caller.identity().worker(WorkerId::from_uuid(Uuid::new_v4())),
    };
    // The server does not know when an external worker starts a task, so each lease counts as an
    // attempt.
    let request = LeaseTasks::new(worker, vec![queue], max, ttl);
    let leased = app.unless_draining(async { Ok(tasks.lease(&request, wait).await?) }).await?;
    app.task_owners().record(caller.identity(), &leased);
    let tasks = leased.iter().map(TaskView::from).collect();
    Ok(axum::Json(LeaseTasksReply { success: true, worker, tasks }))
}
