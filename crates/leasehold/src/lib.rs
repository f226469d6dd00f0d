//! Locks, task queues and workflows that run work in one place at a time, across processes and
//! machines, on the engine that you already have: SQLite, PostgreSQL, Redis, DynamoDB, GitHub Issues
//! or a leasehold server.
//!
//! Everything is a **lease**: a grant that expires by itself and carries a number that only rises,
//! the **fencing token**. A resource that refuses older tokens cannot be written by a process that
//! has lost its lease without knowing it.
//!
//! # Locks
//! A lock is a lease on a name. The guard renews it in the background and releases it at the end; if
//! the lease is lost, the work is dropped:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! use std::time::Duration;
//! use leasehold::Leasehold;
//!
//! let leasehold = Leasehold::connect("memory:").await?; // or sqlite:, postgres://…, redis://…
//! let guard = leasehold.lock("publish/post-42").wait(Duration::from_secs(10)).acquire().await?;
//! guard.run(async |lease| println!("publishing under token {}", lease.token())).await?;
//!
//! assert!(!leasehold.locks().status("publish/post-42").await?.is_locked);
//! # Ok(()) }
//! ```
//!
//! # Tasks
//! A task is a lease on a piece of work. A type that implements [`TaskType`] is the payload and names
//! the queue; a worker runs a handler for each task, with retries, priorities and keys:
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{HandlerError, Leasehold, TaskContext, TaskType};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Encode { video: String }
//!
//! impl TaskType for Encode {
//!     const QUEUE: &'static str = "video";
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! let leasehold = Leasehold::connect("memory:").await?;
//! let added = leasehold.enqueue(&Encode { video: "cat.mov".to_owned() }).key("cat").await?;
//!
//! let worker = leasehold
//!     .worker()
//!     .handle(|task: TaskContext<Encode>| async move {
//!         println!("encoding {}, attempt {}", task.payload.video, task.attempt());
//!         Ok::<_, HandlerError>(())
//!     })
//!     .start()?;
//! # let tasks = leasehold.tasks()?;
//! # while !tasks.get(added.id).await?.state.is_terminal() {
//! #     tokio::time::sleep(Duration::from_millis(5)).await;
//! # }
//! worker.stop(Duration::from_secs(30)).await; // lets running tasks finish
//! # Ok(()) }
//! ```
//!
//! # Workflows
//! A workflow runs once per event, and one execution at a time: the key of the event makes repeated
//! deliveries harmless, and the lock of the workflow keeps other executions out.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! use leasehold::{Leasehold, OnLocked, StartResult};
//!
//! let leasehold = Leasehold::connect("memory:").await?;
//! let deploy = |event: &'static str| {
//!     leasehold.workflow("deploy").key(event).on_locked(OnLocked::Queue(10)).start("v1.2")
//! };
//! assert!(matches!(deploy("event-17").await?, StartResult::Started(_)));
//! assert!(matches!(deploy("event-17").await?, StartResult::Duplicate(_)));
//! assert!(matches!(deploy("event-18").await?, StartResult::Queued(_)));
//! # Ok(()) }
//! ```
//!
//! # Names and errors
//! A call that takes a name takes it validated ([`LockName`](model::LockName), `&LockName`) or as text;
//! invalid text is [`Error::Invalid`], from the call or from the builder's last step. [`Error::code`]
//! is stable, and [`Error::is_retryable`] states whether the same call may succeed later.
//!
//! # Administration
//! [`Leasehold::locks`], [`Leasehold::tasks`], [`Leasehold::workflows`] and `Leasehold::schedules`
//! return handles that query and change what other processes hold.
//!
//! # Features
//! | feature | adds |
//! |---|---|
//! | `sqlite` (default), `postgres`, `redis`, `dynamodb`, `github`, `http` | an engine, besides `memory:` |
//! | `schedules` (default) | cron expressions and the data of all time zones |
//! | `openapi` | schemas of what is serialized |
//! | `testing` | the conformance suite, a store that injects faults, and virtual time |
//!
//! # Layers
//! Each layer depends only on the layers below it: [`client`] is the API for callers, [`store`]
//! contains the engines, and [`model`] the rules that all engines obey.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(clippy::disallowed_methods)]

#[macro_use]
mod planted;
#[macro_use]
mod setters;

pub mod client;
mod error;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use leasehold_model as model;

pub use client::{
    Backoff, EnqueueBuilder, EnqueueResult, Execution, ExecutionEnd, FORGET_LOCKS_AFTER, Guard, GuardState,
    GuardStatus, HandlerError, LeaseHandle, Leasehold, ListExecutions, LockBuilder, LockStatus, Locks,
    Maintenance, OnLocked, RunError, StartBuilder, StartResult, Strategy, TaskContext, TaskType, Tasks,
    Worker, WorkerBuilder, WorkflowLock, WorkflowStatus, Workflows,
};
#[cfg(feature = "schedules")]
pub use client::{ScheduleBuilder, Schedules};
pub use error::{Error, Result, StoreErrorKind, StoreRemedy};
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

/// Doctests of the code in the tutorial for Rust.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/rust.md")]
pub struct RustTutorial;
