//! Who works.

use leasehold::model::{Timestamp, WorkerStatus};
use serde::Serialize;

use super::view::exact;
use crate::output::paint::Paint;
use crate::output::table::{Table, Tint, plain};
use crate::output::text::{ago, visible};

/// One worker, for programs.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkerView {
    id: String,
    host: String,
    pid: u32,
    queues: Vec<String>,
    busy: u32,
    slots: u32,
    state: &'static str,
    started_at: String,
    seen_at: String,
    version: String,
}

impl WorkerView {
    pub(crate) fn new(worker: &WorkerStatus, now: Timestamp) -> Self {
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

/// A row for each.
pub(crate) fn worker_table(workers: &[WorkerStatus], now: Timestamp, paint: Paint) -> String {
    let mut table = Table::new(&["ID", "HOST", "PID", "QUEUES", "BUSY", "HEARD", "STATE", "VERSION"]);
    for worker in workers {
        let info = &worker.info;
        let queues: Vec<_> = info.queues.iter().map(ToString::to_string).collect();
        let state = state(worker, now);
        let tint: Tint = match state {
            "gone" => Paint::bad,
            "draining" => Paint::warning,
            _ => plain,
        };
        let row = vec![
            info.id.to_string(),
            visible(&info.host),
            info.pid.to_string(),
            queues.join(","),
            format!("{}/{}", info.busy, info.slots),
            ago(now, worker.seen_at),
            state.to_owned(),
            visible(&info.version),
        ];
        table.row(tint, row);
    }
    table.paint(paint)
}
