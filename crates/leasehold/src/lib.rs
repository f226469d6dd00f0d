//! leasehold: locks, task queues and workflows that run work in one place at a time, across
//! processes, machines and engines.
//!
//! A **lease** is a grant that expires by itself and carries a monotonically increasing number, the
//! **token**. A **lock** is a lease on a name:
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
//! A **task** is a unit of work that one worker leases at a time. A type that implements [`TaskType`]
//! defines a kind of task, [`Leasehold::enqueue`] adds a task, and [`Leasehold::worker`] builds a worker
//! that handles tasks.
//!
//! A **workflow** is a task that holds a lock while it runs and is identified by its key:
//! [`Leasehold::workflow`] starts one execution per event, even if the event is delivered repeatedly.
//!
//! The library has three layers; each layer depends only on the layers below it: [`client`] is the API
//! for callers, [`store`] contains the engines, and [`model`] contains the rules that all engines obey.

pub mod client;
mod error;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use leasehold_model as model;

pub use client::{
    Backoff, EnqueueBuilder, EnqueueResult, Execution, ExecutionEnd, FORGET_LOCKS_AFTER, Guard, GuardState,
    GuardStatus, HandlerError, LeaseHandle, Leasehold, ListExecutions, LockBuilder, LockStatus, Maintenance,
    OnLocked, RunError, ScheduleBuilder, Schedules, StartBuilder, StartResult, Strategy, TaskContext,
    TaskType, Tasks, Worker, WorkerBuilder, WorkflowLock, WorkflowStatus, Workflows,
};
pub use error::{Error, Result, StoreErrorKind};
pub use store::BootInstant;

/// Doctests of the code in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// Doctests of the code in the guide to tasks.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tasks.md")]
pub struct TasksGuide;

/// Doctests of the code in the guide to workflows.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/workflows.md")]
pub struct WorkflowsGuide;
