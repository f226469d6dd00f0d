//! `github://OWNER/REPO`: many machines, and nothing to set up. A lock is an issue,
//! and so is a task.
//!
//! GitHub compares and sets nothing on issues, so a lock is taken by a protocol over comments: raise a flag, then look
//! whether another one is up. `docs/decisions/0018-github.md` says why that is safe, and with what.
//!
//! | file | idea |
//! |---|---|
//! | `options.rs`, `auth.rs` | from a URL to a repository, its settings, and who asks |
//! | `api.rs`, `answers.rs` | the few calls that are needed, and what comes back |
//! | `pace.rs` | the limits of the service |
//! | `trouble.rs` | what GitHub says, in our words |
//! | `claim.rs` | what a comment of ours says |
//! | `view.rs` | all comments of an issue at one time: who is in the way, the record, the history |
//! | `issues.rs` | which issue a lock is |
//! | `protocol.rs`, `ending.rs` | taking a lock; keeping it, giving it back, taking it away |
//! | `assignment.rs` | the holder as assignee, and repairing what failed |
//! | `people.rs` | what people did to a lock |
//! | `locks.rs`, `lanes.rs`, `store.rs` | the calls of the traits |
//! | `refs/` | `arbiter=ref`: locks by compare-and-swap of git refs instead |
//! | `tasks/` | tasks: issues with a label |
//! | `examine.rs` | what `leasehold doctor` tells |

mod answers;
mod api;
mod assignment;
mod auth;
mod claim;
mod ending;
mod examine;
mod issues;
mod lanes;
mod locks;
mod options;
mod pace;
mod people;
mod protocol;
mod refs;
mod store;
mod tasks;
mod trouble;
mod view;

pub use options::{Arbiter, GithubOptions, Judge};
pub use store::connect;
