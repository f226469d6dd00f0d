//! Problems as a Terraform client takes them: it authenticates by name and password, and shows only the status.

use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// What the handlers of this backend return.
pub(super) type Reply<T = Response> = Result<T, Quiet>;

/// A problem for a Terraform client. People who look with another client find its body.
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
