//! `arbiter=ref`: a lock is a git ref, and each change of the lock is a commit on the tip that was
//! read. GitHub moves a ref to a commit only if the tip is an ancestor of that commit, and creates
//! a ref only if it does not exist: this is compare-and-set. So reads may be arbitrarily stale;
//! `docs/decisions/0020-github-refs.md` explains why that is safe.

mod cache;
mod commit_message;
mod documents;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod issue_mirror;
mod store;

pub(super) use store::connect;
