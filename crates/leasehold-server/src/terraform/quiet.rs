//! Problems for a Terraform client, which authenticates by name and password and shows only the status.

use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// Result type of the handlers of this backend.
pub(super) type Reply<T = Response> = Result<T, Quiet>;

/// Problem for a Terraform client. The body is still sent, for users of other clients.
pub(super) struct Quiet(Problem);

impl<P: Into<Problem>> From<P> for Quiet {
    fn from(problem: P) -> Self {
        Self(problem.into())
    }
}

impl IntoResponse for Quiet {
    fn into_response(self) -> Response {
        self.0.ask_for_password().into_response()
    }
}
