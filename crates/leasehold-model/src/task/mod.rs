//! Tasks: leases on work. Pure, as everything in the model.

mod begin;
mod canonical;
mod op;
mod record;
mod retention;
mod rules;
mod table;
#[cfg(feature = "testing")]
mod test_tasks;
mod values;
mod webhook;
mod worker;
mod workflow;

pub use op::{
    Beat, Cancel, Change, Enqueued, Finished, HeldTask, LeaseTasks, Leased, NewTask, Recovered, Retry, Reuse,
    Settle, Settled, TaskAnswer, TaskOp, Verdict, When,
};
pub use record::{Chain, Task, TaskEvent, TaskEventKind, TaskState};
pub use retention::Retention;
pub use table::{Counts, Pause, QueueStatus, TaskTable};
pub use values::{Fingerprint, MAX_PAYLOAD, Note, Payload, Progress, Retries, TaskId, WorkerId};
pub use webhook::WebhookEvent;
pub use worker::{WorkerInfo, WorkerStatus};
pub(super) use workflow::WORKFLOW;
pub use workflow::{Brief, ExecutionId, Input};
