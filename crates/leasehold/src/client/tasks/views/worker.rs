//! Who works, as JSON.

use serde::Serialize;

use super::task::exact;
use crate::model::{Timestamp, WorkerStatus};

/// One worker.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// New each time it starts.
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub id: String,
    /// The machine it runs on.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The queues it takes tasks from.
    pub queues: Vec<String>,
    /// How many tasks it runs now.
    pub busy: u32,
    /// How many it runs at once.
    pub slots: u32,
    /// `alive`, `draining` if it only finishes what it has, or `gone` if nothing was heard of it for too long.
    #[cfg_attr(feature = "openapi", schema(example = "alive"))]
    pub state: &'static str,
    /// When it was first heard.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub started_at: String,
    /// When it was last heard.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub seen_at: String,
    /// Its version.
    pub version: String,
}

impl WorkerView {
    /// As it is at this time of the store.
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
