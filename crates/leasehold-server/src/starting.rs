//! Responses before the store is connected: the client has to retry.

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;
use crate::request_id::{HiddenTexts, with_request_id};

/// Returns a router that reports the process as alive and answers every other request with 503.
pub(crate) fn starting_router() -> Router {
    Router::new().fallback(answer).layer(from_fn_with_state(HiddenTexts::default(), with_request_id))
}

async fn answer(uri: Uri) -> Response {
    let mut response = if uri.path() == "/healthz" {
        axum::Json(serde_json::json!({ "status": "ok" })).into_response()
    } else {
        let problem = Problem::new("STORE_UNAVAILABLE", "the server has not connected to its store yet");
        problem
            .hint("retry in 1 s; the server is still connecting to the store")
            .retry_after(Duration::from_secs(1))
            .into_response()
    };
    // Closes the connection so that the next request reaches the server that may be ready by then.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
