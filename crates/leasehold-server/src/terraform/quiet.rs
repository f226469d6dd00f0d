//! Problems as Terraform wants them: it shows only the status, and a 401 or 403 has no body.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// What the handlers of this backend return.
pub(super) type Reply<T = Response> = Result<T, Quiet>;

/// A problem, said quietly.
pub(super) struct Quiet(Problem);

impl<P: Into<Problem>> From<P> for Quiet {
    fn from(problem: P) -> Self {
        Self(problem.into())
    }
}

impl IntoResponse for Quiet {
    fn into_response(self) -> Response {
        if !["UNAUTHENTICATED", "FORBIDDEN"].contains(&self.0.code()) {
            return self.0.into_response();
        }
        tracing::debug!(code = self.0.code(), "a Terraform client was turned away");
        let mut response = crate::status::of(self.0.code()).status.into_response();
        // It authenticates by name and password, if at all.
        let basic = HeaderValue::from_static("Basic realm=\"leasehold\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
        response
    }
}
