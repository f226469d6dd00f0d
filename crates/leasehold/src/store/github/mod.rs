//! Engine `github://OWNER/REPO`: locks and tasks for many machines, without any setup. A lock is an
//! issue, and so is a task.
//!
//! GitHub has no compare-and-set on issues, so a client acquires a lock by a protocol over
//! comments: it posts a candidate comment, then reads whether another client has posted one. `docs/decisions/0018-github.md` explains why this is safe, and under which conditions.

mod api;
mod health;
mod locks;
mod markup;
mod options;
mod refs;
mod store;
mod tasks;

pub use crate::store::server_clock::Judge;
pub use options::{Arbiter, GithubOptions};
pub use store::connect;
