//! Tasks: leases on work. Pure, like the rest of the model.

mod admission;
mod history;
mod json;
mod op;
mod queue;
mod record;
mod retention;
mod rules;
mod table;
#[cfg(feature = "testing")]
mod test_tasks;
mod values;
mod why;
mod why_text;
mod worker;
mod workflow;

pub use admission::{Admission, ChainPlace, KeyOwner, LockQueue};
pub use history::{TaskHistoryEvent, TaskHistoryKey, TaskHistoryKind};
pub use json::{MAX_JSON_DEPTH, check_depth};
pub use op::{
    AttemptResult, Cancel, Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask,
    Recovered, Retry, Reuse, Settle, Settled, TaskAnswer, TaskOp, TaskUpdate, When,
};
pub use queue::{Counts, Pause, QueueStatus};
pub use record::{Chain, Task, TaskEvent, TaskEventKind, TaskState};
pub use retention::Retention;
pub use table::TaskTable;
pub use values::{Fingerprint, MAX_PAYLOAD, Message, Payload, Progress, RetryPolicy, TaskId, WorkerId};
pub use why::{TaskReason, TaskSurroundings};
pub use worker::{WorkerInfo, WorkerStatus};
pub use workflow::{ExecutionId, ExecutionInput, ExecutionSpec, WebhookEvent};
