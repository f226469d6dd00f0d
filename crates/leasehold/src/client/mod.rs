//! What callers use: [`Leasehold`], locks and their guards, the sweeper, and what can be seen of a lock.
//!
//! | file | idea |
//! |---|---|
//! | `leasehold.rs` | the handle on a store: everything starts here |
//! | `builder.rs` | how a lock is asked for |
//! | `strategy.rs` | what to do while somebody else has it |
//! | `acquire.rs` | asking until it is ours or patience is over; leaks nothing when dropped |
//! | `guard.rs` | holding it: states, loss, release |
//! | `notices.rs` | learning at once what others did to a lease |
//! | `in_doubt.rs` | operations whose answer was lost |
//! | `keeper.rs`, `renewal.rs` | the threads that keep guards alive, and one renewal |
//! | `run_error.rs` | guarded work whose lease was lost |
//! | `status.rs` | what can be seen of a lock, for people and programs |
//! | `sweeper.rs` | clearing away what nobody comes back for |
//! | `schedules.rs` | tasks that come again and again |
//! | `tasks/` | adding tasks, working on them, looking after them |
//! | `workflows/` | executions: starting them once, running them one at a time |

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
pub use guard::{Guard, GuardState, Health, Held};
pub use leasehold::Leasehold;
pub use run_error::RunError;
pub use schedules::{ScheduleBuilder, Schedules};
pub use status::{AskedStatus, EventView, HolderStatus, LastLease, LockStatus, WaiterStatus};
pub use strategy::{Backoff, Strategy};
pub use sweeper::{FORGET_AFTER, Sweeper};
pub use tasks::{
    Added, CancelView, Caretaker, EnqueueBuilder, PauseView, ProgressView, QueueView, RetentionView, Running,
    ScheduleView, Setback, TaskEventView, TaskView, Tasks, Work, Worker, WorkerBuilder, WorkerView,
};
pub use workflows::{
    Execution, ExecutionEnd, ListExecutions, OnLocked, Start, StartBuilder, WorkflowLock, WorkflowStatus,
    Workflows,
};
