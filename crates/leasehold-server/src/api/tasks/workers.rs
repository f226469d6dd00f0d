//! Workers: their descriptions and the list of workers.

use std::time::Duration;

use axum::extract::{Path, State};
use leasehold::client::WorkerView;
use leasehold::model::{QueueName, Ttl, WorkerId, WorkerInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::values::{Success, invalid_field, ttl, worker_id};
use crate::access::{Caller, Identity, Reader, Worker};
use crate::problem::ApiResult;
use crate::roles::routes;
use crate::schemas::{Count, PositiveSeconds, WorkerText};
use crate::server::App;

/// Minimum default heartbeat interval. A worker is considered gone after three missed heartbeats.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(deregister))
}

/// Description of a worker, for the list of workers.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WorkerBody {
    /// Id of the worker: a UUID, new for each start.
    pub(super) id: Uuid,
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
    /// Heartbeat interval in seconds. A worker is shown as gone after three missed heartbeats.
    #[schema(value_type = Option<PositiveSeconds>)]
    every_seconds: Option<f64>,
}

/// Values for fields that the description of a worker omits.
pub(super) struct WorkerDefaults {
    pub(super) queues: Vec<QueueName>,
    pub(super) busy: u32,
    pub(super) every: Duration,
}

impl WorkerBody {
    pub(super) fn info(self, identity: &Identity, defaults: WorkerDefaults) -> ApiResult<WorkerInfo> {
        let queues =
            self.queues.map(|names| names.into_iter().map(QueueName::new).collect::<Result<Vec<_>, _>>());
        let queues = queues.transpose()?.unwrap_or(defaults.queues);
        let busy = self.busy.unwrap_or(defaults.busy);
        let every = match self.every_seconds {
            Some(seconds) => ttl("worker.everySeconds", seconds)?,
            None => Ttl::new(defaults.every.max(MIN_HEARTBEAT_INTERVAL)).unwrap_or(Ttl::MAX),
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
        info.check().map_err(|error| invalid_field("worker", error))
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
async fn list(State(app): State<App>, _: Caller<Reader>) -> ApiResult<axum::Json<WorkerList>> {
    let workers = app.leasehold().tasks()?.workers().await?;
    let now = app.leasehold().now().await?;
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
async fn deregister(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Success>> {
    app.leasehold().tasks()?.deregister(caller.identity().worker(worker_id(&id)?)).await?;
    Ok(Success::json())
}
