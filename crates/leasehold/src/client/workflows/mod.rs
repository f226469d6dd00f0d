//! Workflows: an event starts one execution, once, and executions of one workflow run one at a
//! time.
//!
//! An execution is a task of the queue `workflow/NAME` under the lock of the same name. All
//! features of tasks apply to executions: leases, heartbeats, recovery, cancellation, progress,
//! results.

mod desk;
mod execution;
mod external;
mod handle;
mod stale;
mod start;

pub use desk::{ListExecutions, Workflows};
pub use execution::{Execution, WorkflowLock, WorkflowStatus};
pub use external::ExecutionEnd;
pub(super) use stale::{clear_all_stale, clear_stale};
pub use start::{OnLocked, StartBuilder, StartResult};
