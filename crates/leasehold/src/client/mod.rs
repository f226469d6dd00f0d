//! Client API: [`Leasehold`], locks and their guards, tasks, schedules, workflows, the sweeper, and
//! the status of a lock.

mod acquire;
mod builder;
mod contact;
mod guard;
mod in_doubt;
mod keeper;
mod leasehold;
mod notices;
mod renewal;
mod run_error;
mod schedules;
mod status;
mod strategy;
mod sweeper;
mod tasks;
mod workflows;

pub use builder::LockBuilder;
pub use guard::{Guard, GuardState, GuardStatus, LeaseHandle};
pub use leasehold::Leasehold;
pub use run_error::RunError;
pub use schedules::{ScheduleBuilder, Schedules};
pub use status::{AskedStatus, EventView, HolderStatus, LastLease, LockStatus, WaiterStatus};
pub use strategy::{Backoff, Strategy};
pub use sweeper::{FORGET_AFTER, Sweeper};
pub use tasks::{
    CancelView, Caretaker, EnqueueBuilder, EnqueueResult, HandlerError, PauseView, ProgressView, QueueView,
    RetentionView, ScheduleView, TaskContext, TaskEventView, TaskType, TaskView, Tasks, Worker,
    WorkerBuilder, WorkerView,
};
pub use workflows::{
    Execution, ExecutionEnd, ListExecutions, OnLocked, StartBuilder, StartResult, WorkflowLock,
    WorkflowStatus, Workflows,
};
