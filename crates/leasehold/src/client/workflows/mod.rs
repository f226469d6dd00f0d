//! Workflows: an event starts one execution, once, and executions of one workflow run one at a
//! time.
//!
//! An execution is a task of the queue `workflow/NAME` under the lock of the same name. All
//! features of tasks apply to executions: leases, heartbeats, recovery, cancellation, progress,
//! results.

mod admin;
mod execution;
mod external_worker;
mod list;
mod start;

pub use admin::Workflows;
pub use execution::{Execution, WorkflowLock, WorkflowStatus};
pub use external_worker::ExecutionEnd;
pub use list::ListExecutions;
pub use start::{OnLocked, StartBuilder, StartResult};
