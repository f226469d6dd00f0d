//! The rules. Pure: no I/O, no clock, no async.
//!
//! Everything here is data, or a function from data to data. The one that matters is
//! [`LockRecord::apply`]: it takes an operation and the engine's time, changes the record, and says what came of
//! it. Engines make "load, apply, save" atomic; they decide nothing.

mod ask;
#[cfg(feature = "openapi")]
mod describe;
mod duration;
mod event;
mod fence;
mod forget;
mod json;
mod name;
mod op;
mod outcome;
mod process;
mod queue;
mod record;
mod rules;
mod schedule;
mod task;
mod ticks;
mod time;
mod token;

pub use ask::{Ask, LeaseId, LeaseRef, Metadata, Mode, Priority, Slots};
pub use duration::{format_duration, parse_duration};
pub use event::{Event, EventKind};
pub use fence::{Fence, StaleToken};
pub use forget::TokenFloor;
pub use json::{DEEPEST_JSON, check_depth};
pub use name::{
    DeliveryId, EventName, Holder, LockName, QueueName, Reason, ScheduleName, TaskKey, TriggerId,
    WorkflowName,
};
pub use op::{Acquire, AskRelease, ForceRelease, Leave, LockOp, Release, Renew, Restarted, Sweep};
pub use outcome::{Applied, Conflict, HeldBy, NotHeld, Outcome, Queued, Swept};
pub use process::{BootId, Member, Process};
pub use record::{Asked, Lease, LockRecord, Status, Ticket, TookOver};
pub use schedule::{CronText, Missed, Schedule, Zone};
pub use task::{
    Beat, Brief, Cancel, Chain, Change, Counts, Enqueued, ExecutionId, Fingerprint, Finished, HeldTask,
    Input, LeaseTasks, Leased, MAX_PAYLOAD, NewTask, Note, Pause, Payload, Progress, QueueStatus, Recovered,
    Retention, Retries, Retry, Reuse, Settle, Settled, Task, TaskAnswer, TaskEvent, TaskEventKind, TaskId,
    TaskOp, TaskState, TaskTable, Verdict, WebhookEvent, When, WorkerId, WorkerInfo, WorkerStatus,
};
pub use time::{Timestamp, Ttl};
pub use token::Token;

/// A value that cannot be: what was wrong with it, in words for the person who typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

/// No lock has more live leases than this: a record stays small enough to be read and written whole.
pub const MAX_HOLDERS: usize = 1000;

/// No lock has more tickets than this; a request that would be one more is refused.
pub const MAX_WAITERS: usize = 1000;
