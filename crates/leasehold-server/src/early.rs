//! What is answered before the store is there: come back later.

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};

use crate::envelope::{Hidden, envelope};
use crate::problem::Problem;

/// Alive, but not ready for anything.
pub(crate) fn early() -> Router {
    Router::new().fallback(answer).layer(from_fn_with_state(Hidden::default(), envelope))
}

async fn answer(uri: Uri) -> Response {
    let mut response = if uri.path() == "/healthz" {
        axum::Json(serde_json::json!({ "status": "ok" })).into_response()
    } else {
        let problem = Problem::new("STORE_UNAVAILABLE", "the store has not been reached since the start");
        problem.hint("try again: it is being tried").retry_after(Duration::from_secs(1)).into_response()
    };
    // The next request is to find the server that is there by then.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
