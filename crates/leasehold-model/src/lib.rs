//! Pure model of locks and tasks: no I/O, no clock, no async.
//!
//! This crate contains only data and functions from data to data. The central one is
//! [`LockRecord::apply`]: it takes an operation and the engine's time, changes the record and
//! returns the outcome. Engines make "load, apply, save" atomic; they make no decisions of their own.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(clippy::disallowed_methods)]

// Records, operations and their answers are exhaustive on purpose: an engine stores every field and
// handles every case, so a new one must fail to compile there. Types that only report something to
// callers (`ValidationError`, `StaleToken`, kinds of events) are `#[non_exhaustive]`.

mod deadlock;
#[cfg(feature = "openapi")]
mod describe;
mod event;
mod fence;
mod forget;
mod json;
mod name;
mod op;
mod outcome;
mod queue;
mod record;
mod request;
mod rules;
#[cfg(feature = "schedules")]
mod schedule;
mod task;
#[cfg(feature = "schedules")]
mod ticks;
mod time;
mod token;
mod validation_error;
mod why;
mod why_text;

pub use deadlock::{Deadlock, RingLease, RingWait, deadlocks, suspected_locks};
pub use event::{Event, EventKind};
pub use fence::{Fence, StaleToken};
pub use forget::TokenFloor;
pub use json::{DEEPEST_JSON, check_depth};
pub use name::{
    DeliveryId, EventName, Holder, LockName, QueueName, Reason, ScheduleName, TaskKey, TriggerId,
    WorkflowName,
};
pub use op::{Acquire, ForceRelease, LockOp, Release, Renew, RequestRelease, Restarted, Sweep, Withdraw};
pub use outcome::{Acquired, Applied, Conflict, HeldBy, NotHeld, Outcome, Queued, Swept, UnexpectedOutcome};
pub use queue::MAX_WAITERS;
pub use record::{Lease, LockRecord, Status, StopRequest, Ticket, TookOver};
pub use request::{
    BootId, LeaseId, LeaseRef, LockRequest, MAX_HOLDERS, Member, Metadata, Mode, Priority, Process, Slots,
};
#[cfg(feature = "schedules")]
pub use schedule::{CronExpression, MisfirePolicy, Schedule, TimeZoneName};
pub use task::{
    Admission, AttemptResult, Cancel, Chain, ChainPlace, Change, Counts, Enqueued, ExecutionId,
    ExecutionInput, ExecutionSpec, Fingerprint, FinishedFilter, HeartbeatResult, HeldTask, KeyOwner,
    LeaseTasks, Leased, LockQueue, MAX_PAYLOAD, Message, NewTask, Pause, Payload, Progress, QueueStatus,
    Recovered, Retention, Retry, RetryPolicy, Reuse, Settle, Settled, Task, TaskAnswer, TaskEvent,
    TaskEventKind, TaskHistoryEvent, TaskHistoryKey, TaskHistoryKind, TaskId, TaskOp, TaskReason, TaskState,
    TaskSurroundings, TaskTable, WebhookEvent, When, WorkerId, WorkerInfo, WorkerStatus,
};
pub use time::{Timestamp, Ttl, format_duration, parse_duration};
pub use token::Token;
pub use validation_error::{ValidationError, ValueKind};
pub use why::{Behind, Freeing, LockReason, LockRemedy, LockSurroundings};
pub use why_text::TimeWriter;
