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

#[cfg(feature = "openapi")]
mod describe;
mod lock;
mod name;
#[cfg(feature = "schedules")]
mod schedule;
mod shell;
mod task;
mod time;
mod validation_error;

pub use lock::{
    Acquire, Acquired, Applied, BootId, Conflict, Deadlock, Event, EventKind, Fence, ForceRelease, HeldBy,
    Lease, LeaseId, LeaseRef, LeaseStatus, LockOp, LockReason, LockRecord, LockRemedy, LockRequest,
    LockSurroundings, MAX_HOLDERS, MAX_WAITERS, Member, Metadata, Mode, NotHeld, Outcome, Priority, Process,
    Queued, Release, ReleaseCause, Renew, RequestRelease, Restarted, RingLease, RingWait, Slots, StaleToken,
    StopRequest, Sweep, Swept, Ticket, TimeWriter, Token, TokenFloor, TookOver, UnexpectedOutcome, WaitCause,
    Withdraw, deadlocks, suspected_locks,
};
pub use name::{
    DeliveryId, EventName, Holder, LockName, QueueName, Reason, ScheduleName, TaskKey, TriggerId,
    WorkflowName,
};
#[cfg(feature = "schedules")]
pub use schedule::{CronExpression, MisfirePolicy, Schedule, TimeZoneName};
pub use shell::{lock_command, shell_word};
pub use task::{
    Admission, AttemptResult, Cancel, Chain, ChainPlace, Counts, Enqueued, ExecutionId, ExecutionInput,
    ExecutionSpec, Fingerprint, FinishedFilter, HeartbeatResult, HeldTask, KeyOwner, LeaseTasks, Leased,
    LockQueue, MAX_JSON_DEPTH, MAX_PAYLOAD, Message, NewTask, Pause, Payload, Progress, QueueStatus,
    Recovered, Retention, Retry, RetryPolicy, Reuse, Settle, Settled, Task, TaskAnswer, TaskEvent,
    TaskEventKind, TaskHistoryEvent, TaskHistoryKey, TaskHistoryKind, TaskId, TaskOp, TaskReason, TaskState,
    TaskSurroundings, TaskTable, TaskUpdate, WebhookEvent, When, WorkerId, WorkerInfo, WorkerStatus,
    check_depth,
};
pub use time::{Timestamp, Ttl, format_duration, parse_duration};
pub use validation_error::{ValidationError, ValueKind};
