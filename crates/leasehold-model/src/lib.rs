//! Pure model of locks and tasks: no I/O, no clock, no async.
//!
//! This crate contains only data and functions from data to data. The central one is
//! [`LockRecord::apply`]: it takes an operation and the engine's time, changes the record and
//! returns the outcome. Engines make "load, apply, save" atomic; they make no decisions of their own.

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
pub use op::{Acquire, ForceRelease, Leave, LockOp, Release, Renew, RequestRelease, Restarted, Sweep};
pub use outcome::{Applied, Conflict, HeldBy, NotHeld, Outcome, Queued, Swept};
pub use process::{BootId, Member, Process};
pub use record::{Asked, Lease, LockRecord, Status, Ticket, TookOver};
pub use schedule::{CronExpression, MisfirePolicy, Schedule, TimeZoneName};
pub use task::{
    AttemptResult, Cancel, Chain, Change, Counts, Enqueued, ExecutionId, ExecutionSpec, Fingerprint,
    FinishedFilter, HeartbeatResult, HeldTask, Input, LeaseTasks, Leased, MAX_PAYLOAD, Message, NewTask,
    Pause, Payload, Progress, QueueStatus, Recovered, Retention, Retry, RetryPolicy, Reuse, Settle, Settled,
    Task, TaskAnswer, TaskEvent, TaskEventKind, TaskId, TaskOp, TaskState, TaskTable, WebhookEvent, When,
    WorkerId, WorkerInfo, WorkerStatus,
};
pub use time::{Timestamp, Ttl};
pub use token::Token;

/// Validation error; the message is meant for end users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValidationError(pub String);

/// Maximum number of live leases of a lock. It keeps a record small enough to be read and written as a whole.
pub const MAX_HOLDERS: usize = 1000;

/// Maximum number of tickets of a lock; a request that would exceed it is rejected.
pub const MAX_WAITERS: usize = 1000;
