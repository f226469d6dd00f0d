//! Client API: [`Leasehold`], locks and their guards, tasks, schedules, workflows, maintenance, and
//! the status of a lock.

mod background;
mod context;
mod leasehold;
mod locks;
mod maintenance;
#[cfg(feature = "schedules")]
mod schedules;
mod tasks;
mod workflows;

pub use leasehold::Leasehold;
pub use locks::{
    Backoff, DeadlockView, Deadlocks, DeadlocksView, EventView, Guard, GuardState, GuardStatus, HolderStatus,
    LastLease, LeaseHandle, LockBuilder, LockCommandView, LockExplanation, LockExplanationView,
    LockReasonView, LockStatus, Locks, ReleaseRequestStatus, RingLeaseView, RingWaitView, RunError, Strategy,
    WaiterStatus, enclosing_leases,
};
pub use maintenance::{FORGET_LOCKS_AFTER, Maintenance};
#[cfg(feature = "schedules")]
pub use schedules::{ScheduleBuilder, Schedules};
#[cfg(feature = "schedules")]
pub use tasks::ScheduleView;
pub use tasks::{
    AttemptOutput, CancelView, EnqueueBuilder, EnqueueResult, FeedNotice, HandlerError, OutputLine,
    OutputRecorder, OutputStream, PauseView, ProgressView, QueueView, RetentionView, TaskContext,
    TaskEventView, TaskExplanation, TaskExplanationView, TaskFeed, TaskFeedItem, TaskHistoryView,
    TaskReasonView, TaskType, TaskView, Tasks, Worker, WorkerBuilder, WorkerView,
};
pub use workflows::{
    Execution, ExecutionEnd, ListExecutions, OnLocked, StartBuilder, StartResult, WorkflowLock,
    WorkflowStatus, Workflows,
};
