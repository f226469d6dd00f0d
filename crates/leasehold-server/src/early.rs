//! Responses before the store is connected: the client has to retry.

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};

use crate::envelope::{Hidden, envelope};
use crate::problem::Problem;

/// Returns a router that reports the process as alive and answers every other request with 503.
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
    // Closes the connection so that the next request reaches the server that may be ready by then.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
