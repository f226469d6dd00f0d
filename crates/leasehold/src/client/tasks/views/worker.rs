//! JSON view of a worker.

use serde::Serialize;

use super::task::exact;
use crate::model::{Timestamp, WorkerStatus};

/// A worker.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// Id of the worker, new for every start.
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub id: String,
    /// Host that the worker runs on.
    pub host: String,
    /// Process id of the worker on its host.
    pub pid: u32,
    /// Queues that the worker leases tasks from.
    pub queues: Vec<String>,
    /// Number of tasks that the worker runs now.
    pub busy: u32,
    /// Maximum number of tasks that the worker runs at once.
    pub slots: u32,
    /// State of the worker: `alive`, `draining` if it only finishes its running tasks, or `gone` if
    /// it has missed its heartbeats for too long.
    #[cfg_attr(feature = "openapi", schema(example = "alive"))]
    pub state: &'static str,
    /// Time of the first heartbeat.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub started_at: String,
    /// Time of the last heartbeat.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub seen_at: String,
    /// Version of leasehold that the worker runs.
    pub version: String,
}

impl WorkerView {
    /// Creates the view as of this time of the store.
    pub fn new(worker: &WorkerStatus, now: Timestamp) -> Self {
        let info = &worker.info;
        Self {
            id: info.id.to_string(),
            host: info.host.clone(),
            pid: info.pid,
            queues: info.queues.iter().map(ToString::to_string).collect(),
            busy: info.busy,
            slots: info.slots,
            state: state(worker, now),
            started_at: exact(worker.started_at),
            seen_at: exact(worker.seen_at),
            version: info.version.clone(),
        }
    }
}

fn state(worker: &WorkerStatus, now: Timestamp) -> &'static str {
    match worker {
        _ if worker.is_gone(now) => "gone",
        _ if worker.info.draining => "draining",
        _ => "alive",
    }
}
