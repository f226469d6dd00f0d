//! What some of these requests may come to, for the description of the API. `openapi.rs` adds what all of them may.

use utoipa::IntoResponses;

use crate::problem::Problem;

/// There is no such task, queue or schedule.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described, never made")]
pub(super) enum Missing {
    /// There is no such thing
    #[response(status = NOT_FOUND, content_type = "application/problem+json")]
    Unknown(Problem),
}

/// The lease is over: `LEASE_LOST`.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described, never made")]
pub(super) enum Lost {
    /// No lease with that token: stop working on it
    #[response(status = CONFLICT, content_type = "application/problem+json")]
    Lost(Problem),
}

/// The task stands where this makes no sense: `TASK_STATE`.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described, never made")]
pub(super) enum OtherState {
    /// Not possible in the state that the task is in
    #[response(status = CONFLICT, content_type = "application/problem+json")]
    State(Problem),
}
