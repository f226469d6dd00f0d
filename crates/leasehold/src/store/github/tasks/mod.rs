//! Tasks on issues. A queue is a label, a task is an issue with that label, and the lease of a task
//! is the claim on its issue.
//!
//! A client that changes a task holds the claim on its issue for that moment, and writes the record
//! of the task into that very claim; so all changes have one order, that of the tokens.
//! `docs/decisions/0021-tasks-on-github.md` contains the details.

mod complete;
mod context;
mod enqueue;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod issue_body;
mod labels;
mod lease;
mod lease_order;
mod maintenance;
mod queries;
mod record;
mod store;
mod task_view;
mod update;

pub(super) use labels::add_label_metadata;
pub(super) use record::Record;
pub(super) use store::{GithubTasks, TASK_CAPABILITIES};
