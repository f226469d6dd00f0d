//! Workflows: an event starts one execution, once, and executions of one workflow run one at a time.
//!
//! An execution is a task of the queue `workflow/NAME` under the lock of the same name. Whatever holds for tasks holds for
//! executions: leases, signs of life, recovery, stopping, progress, results.
//!
//! | file | idea |
//! |---|---|
//! | `start.rs` | starting an execution: key, lock and task in one step of the engine |
//! | `execution.rs` | an execution, and a workflow's lock, as people see them |
//! | `desk.rs` | looking at executions, stopping them, unlocking a workflow |
//! | `handle.rs` | handlers of workflows in a worker |
//! | `external.rs` | executions that somebody else runs, by id and token |
//! | `stale.rs` | locks whose execution is not running: cleared away on sight |

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
pub use start::{OnLocked, Start, StartBuilder};
