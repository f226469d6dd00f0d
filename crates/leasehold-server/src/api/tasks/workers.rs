//! Who works, and what a worker elsewhere says about itself.

use std::time::Duration;

use axum::extract::{Path, State};
use leasehold::client::WorkerView;
use leasehold::model::{QueueName, Ttl, WorkerId, WorkerInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::replies::Success;
use super::values::{ttl, worker_id, wrong};
use crate::access::{Caller, Reader, Who, Worker};
use crate::described::{Count, SomeSeconds, WorkerText};
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

/// A worker is not taken for gone sooner than after thrice this.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(leave))
}

/// What a worker says about itself, for the list of workers.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WorkerBody {
    /// A UUID, new each time it starts.
    pub(super) id: Uuid,
    /// The machine it runs on.
    #[schema(value_type = Option<WorkerText>)]
    host: Option<String>,
    /// Its process there.
    #[schema(value_type = Option<Count>)]
    pid: Option<u32>,
    /// Its version.
    #[schema(value_type = Option<WorkerText>)]
    version: Option<String>,
    /// The queues it takes tasks from.
    #[schema(value_type = Option<Vec<QueueName>>, max_items = 1000)]
    queues: Option<Vec<String>>,
    /// How many tasks it runs at once.
    #[schema(value_type = Option<Count>)]
    slots: Option<u32>,
    /// How many it runs now.
    #[schema(value_type = Option<Count>)]
    busy: Option<u32>,
    /// Whether it only finishes what it has.
    draining: Option<bool>,
    /// It says something at least this often; after thrice as long it is shown as gone.
    #[schema(value_type = Option<SomeSeconds>)]
    every_seconds: Option<f64>,
}

/// What is known of a worker that does not say it.
pub(super) struct Known {
    pub(super) queues: Vec<QueueName>,
    pub(super) busy: u32,
    pub(super) every: Duration,
}

impl WorkerBody {
    pub(super) fn info(self, who: &Who, known: Known) -> Answer<WorkerInfo> {
        let named = |name: String| QueueName::new(name);
        let queues = self.queues.map(|names| names.into_iter().map(named).collect::<Result<Vec<_>, _>>());
        let queues = queues.transpose()?.unwrap_or(known.queues);
        let busy = self.busy.unwrap_or(known.busy);
        let every = match self.every_seconds {
            Some(seconds) => ttl("worker.everySeconds", seconds)?,
            None => Ttl::new(known.every.max(SHORTEST_SILENCE)).unwrap_or(Ttl::MAX),
        };
        let info = WorkerInfo {
            id: who.worker(WorkerId::from_uuid(self.id)),
            host: self.host.unwrap_or_else(|| "unknown".to_owned()),
            pid: self.pid.unwrap_or(0),
            version: self.version.unwrap_or_default(),
            queues,
            slots: self.slots.unwrap_or_else(|| busy.max(1)),
            busy,
            draining: self.draining.unwrap_or(false),
            every,
        };
        info.check().map_err(|invalid| wrong("worker", invalid))
    }
}

/// Who works.
#[derive(Serialize, ToSchema)]
struct WorkerList {
    /// Those that were heard of in the last hour, oldest first.
    workers: Vec<WorkerView>,
}

/// The workers that were heard of in the last hour, on this server or elsewhere.
#[utoipa::path(
    get, path = "/api/v1/workers", tag = "tasks", operation_id = "listWorkers",
    responses((status = OK, body = WorkerList)),
)]
async fn list(State(app): State<App>, _: Caller<Reader>) -> Answer<axum::Json<WorkerList>> {
    let workers = app.leasehold().tasks()?.workers().await?;
    let now = app.leasehold().now().await?;
    let workers = workers.iter().map(|worker| WorkerView::new(worker, now)).collect();
    Ok(axum::Json(WorkerList { workers }))
}

/// Say good-bye: the worker is no longer listed. What it still has comes back when its leases run out.
#[utoipa::path(
    delete, path = "/api/v1/workers/{id}", tag = "tasks", operation_id = "removeWorker",
    params(("id" = WorkerId, Path, description = "The worker")),
    responses((status = OK, description = "Also if it was not there", body = Success)),
)]
async fn leave(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(id): Path<String>,
) -> Answer<axum::Json<Success>> {
    app.leasehold().tasks()?.leave(caller.who().worker(worker_id(&id)?)).await?;
    Ok(Success::json())
}
