//! Tasks on issues. A queue is a label, a task is an issue with that label, and the lease of a task
//! is the claim on its issue.
//!
//! A client that changes a task holds the claim on its issue for that moment, and writes the record
//! of the task into that very claim; so all changes have one order, that of the tokens.
//! `docs/decisions/0021-tasks-on-github.md` contains the details.

mod adding;
mod beating;
mod changing;
mod desk;
mod finishing;
mod labels;
mod leasing;
mod line;
mod looking;
mod made;
mod record;
mod recovering;
mod settling;
mod sight;
mod store;

pub(super) use desk::facts;
pub(super) use labels::tell as tell_labels;
pub(super) use record::Record;
pub(super) use store::{CAN, GithubTasks};
