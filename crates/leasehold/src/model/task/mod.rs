//! Tasks: leases on work. Pure, as everything in the model.
//!
//! | file | idea |
//! |---|---|
//! | `values.rs` | ids, payloads, progress, backoff: what a task is made of |
//! | `record.rs` | one task as it is stored, and what happened to it |
//! | `op.rs` | what can be asked of a task or a queue, and what is answered |
//! | `rules.rs` | the rules of one task |
//! | `begin.rs` | when an attempt counts: what is started at once, fetched ahead, or run alone |
//! | `table.rs` | all tasks together: who is next, keys, locks, counts. The reference for every engine |
//! | `retention.rs` | how long finished tasks are kept |
//! | `webhook.rs` | the webhook delivery that started an execution |
//! | `worker.rs` | who works |
//! | `workflow.rs` | executions of workflows: tasks with a brief, under their workflow's lock |

mod begin;
mod canonical;
mod op;
mod record;
mod retention;
mod rules;
mod table;
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
