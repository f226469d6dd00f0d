//! What any of these requests may come to, for the description of the API.

use utoipa::IntoResponses;

use crate::problem::Problem;

/// What any of them may come to.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described, never made")]
pub(super) enum Usual {
    /// Something in the request cannot be
    #[response(status = BAD_REQUEST, content_type = "application/problem+json")]
    Invalid(Problem),
    /// No token, or not a good one
    #[response(status = UNAUTHORIZED, content_type = "application/problem+json")]
    Unauthenticated(Problem),
    /// The token's role does not allow it
    #[response(status = FORBIDDEN, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// The store has no tasks
    #[response(status = NOT_IMPLEMENTED, content_type = "application/problem+json")]
    NotSupported(Problem),
    /// The store cannot be reached, or the server is stopping
    #[response(status = SERVICE_UNAVAILABLE, content_type = "application/problem+json")]
    Unavailable(Problem),
}

/// There is no such task, queue or schedule.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described, never made")]
pub(super) enum Missing {
    /// There is no such thing
    #[response(status = NOT_FOUND, content_type = "application/problem+json")]
    Unknown(Problem),
}

/// A body that cannot be taken.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described, never made")]
pub(super) enum BadBody {
    /// The body did not arrive in time
    #[response(status = REQUEST_TIMEOUT, content_type = "application/problem+json")]
    Slow(Problem),
    /// The body is too large
    #[response(status = PAYLOAD_TOO_LARGE, content_type = "application/problem+json")]
    Large(Problem),
    /// The body is not said to be JSON
    #[response(status = UNSUPPORTED_MEDIA_TYPE, content_type = "application/problem+json")]
    NotJson(Problem),
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
