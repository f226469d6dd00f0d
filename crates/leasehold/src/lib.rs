//! leasehold: work that runs in one place at a time, across processes, machines and engines.
//!
//! A **lease** is a grant that ends by itself and carries a number, the **token**, that only rises. A **lock** is a
//! lease on a name:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! use std::time::Duration;
//! use leasehold::Leasehold;
//!
//! let leasehold = Leasehold::connect("memory:").await?;
//!
//! // One of these at a time, wherever they run. If the lease is lost, the work is dropped.
//! leasehold
//!     .lock("publish/post-42")
//!     .wait(Duration::from_secs(10))
//!     .acquire()
//!     .await?
//!     .run(async |lease| println!("publishing under token {}", lease.token()))
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! A **task** is a piece of work that goes to one worker at a time: [`Work`] is a kind of task,
//! [`Leasehold::enqueue`] adds one, and [`Leasehold::worker`] makes a worker that handles them.
//!
//! A **workflow** is a task that holds a lock while it runs, found again by its key: [`Leasehold::workflow`] starts one
//! execution for an event, however often that comes.
//!
//! Three floors, arrows only downward: [`client`] is what callers use, [`store`] has the engines, [`model`] has the
//! rules that all engines obey.

pub mod client;
mod error;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use leasehold_model as model;

pub use client::{
    Added, Backoff, Caretaker, EnqueueBuilder, Execution, ExecutionEnd, FORGET_AFTER, Guard, GuardState,
    Health, Held, Leasehold, ListExecutions, LockBuilder, LockStatus, OnLocked, RunError, Running,
    ScheduleBuilder, Schedules, Setback, Start, StartBuilder, Strategy, Sweeper, Tasks, Work, Worker,
    WorkerBuilder, WorkflowLock, WorkflowStatus, Workflows,
};
pub use error::{Error, Result, Trouble};
pub use store::Moment;

/// The code in the README is tested too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// And that of the guide to tasks.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tasks.md")]
pub struct TasksGuide;

/// And that of the guide to workflows.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/workflows.md")]
pub struct WorkflowsGuide;
