//! Runs real processes against a real store, injects faults, records a history and checks it
//! against leasehold's promises.
//!
//! The coordinator ([`run`]) starts worker processes, which acquire locks, add and run tasks, and
//! record what they do. It kills and stops them, and disturbs their connections with a proxy. The
//! [`History`] of all processes has one clock, the boot clock of the machine. [`check`] finds
//! violations in it, and [`Report`] sums it up. The command `leasehold torture` does all this.

mod checker;
mod coordinator;
mod ends;
mod faults;
pub mod history;
mod proxy;
mod race;
mod report;
mod schedule;
mod sink;
mod worker;

pub use checker::{Checked, Checker, Operations, Property, Violation};
pub use coordinator::{Plan, Progress, Session, run, run_beside};
pub use faults::{EngineFault, FaultKind};
pub use history::History;
pub use race::{Race, race};
pub use report::{Latency, NotPromised, Report, check};
pub use worker::{run_worker, run_worker_on};

/// Name of the fault that kills a process.
const KILL: &str = "kill";

/// State of a task that the store does not have.
const MISSING: &str = "missing";

/// Error that prevents a run; a violation is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store cannot be used.
    #[error(transparent)]
    Leasehold(#[from] leasehold::Error),
    /// A process, file or socket cannot be used.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The store exists in one process only.
    #[error("the store {0} exists in one process only, and torture needs several")]
    OneProcess(String),
    /// The plan has no command that starts a worker.
    #[error("the plan has no command that starts a worker")]
    NoWorkerCommand,
    /// The history cannot be written.
    #[error("cannot write the history: {0}")]
    Record(#[source] std::io::Error),
    /// The user has ended the run at once.
    #[error("the run was ended at once, without a report")]
    Interrupted,
    /// A worker process has ended although no fault has ended it.
    #[error("a worker process has ended by itself: {0}")]
    WorkerEnded(String),
}
