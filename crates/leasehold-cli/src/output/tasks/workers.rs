//! Workers as a table.

use leasehold::client::WorkerView;
use leasehold::model::{Timestamp, WorkerStatus};

use crate::output::paint::Paint;
use crate::output::table::{Table, Tint, plain};
use crate::output::text::{ago, visible};

/// Returns a table with a row for each worker.
pub(crate) fn worker_table(workers: &[WorkerStatus], now: Timestamp, paint: Paint) -> String {
    let mut table = Table::new(&["ID", "HOST", "PID", "QUEUES", "BUSY", "HEARD", "STATE", "VERSION"]);
    for worker in workers {
        let info = &worker.info;
        let queues: Vec<_> = info.queues.iter().map(ToString::to_string).collect();
        let state = WorkerView::new(worker, now).state;
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
