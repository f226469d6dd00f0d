//! Locks on issues: GitHub has no compare-and-set on issues, so clients acquire a lock by a protocol
//! over the comments of its issue. Tasks use the same protocol for their claims.

mod acquire;
mod assignment;
mod claim;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod history;
mod issues;
mod protocol;
mod release;
mod store;
mod view;

pub(super) use acquire::{AcquireAttempt, UpdatedClaim};
pub(super) use claim::{
    Claim, CommentContent, HEARTBEAT, StopRequestComment, exclusive_request, worker_metadata,
};
pub(super) use issues::{is_lock, issue_number};
pub(super) use protocol::Protocol;
pub(super) use store::{GithubLocks, POLL};
pub(super) use view::{ClaimState, GRACE, View};
