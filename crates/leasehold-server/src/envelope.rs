//! What every request gets: an id that is also in the answer and in the log, and its problem written out.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;
use uuid::Uuid;

use crate::problem::Problem;

/// The header that carries the id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const LONGEST_ID: usize = 128;

/// Texts that no client gets to see: where the store is. Operators find them in the log.
#[derive(Clone, Default)]
pub(crate) struct Hidden(Arc<[String]>);

impl Hidden {
    /// Of a store with this address.
    pub(crate) fn address(url: &str) -> Self {
        // A local path is named without its scheme and its settings.
        let path = url.strip_prefix("sqlite:").map(|rest| rest.split('?').next().unwrap_or(rest));
        // With the blank before them, so that a sentence stays one.
        let texts = [Some(url), path].into_iter().flatten().filter(|text| text.len() > 1);
        Self(texts.map(|text| format!(" {text}")).collect())
    }
}

/// The outermost layer.
pub(crate) async fn envelope(State(hidden): State<Hidden>, request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let path = request.uri().path().to_owned();
    // The pattern, not the path: it has few values.
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let span =
        tracing::info_span!("request", method = %request.method(), route, id = %id.to_str().unwrap_or(""));
    let mut response = next.run(request).instrument(span.clone()).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let problem = problem.of_request(&path, id.to_str().unwrap_or("")).without(&hidden.0);
        let written = problem.write();
        let extra = std::mem::take(response.headers_mut());
        response = written;
        for (name, value) in &extra {
            if !response.headers().contains_key(name) && name != axum::http::header::CONTENT_LENGTH {
                response.headers_mut().insert(name, value.clone());
            }
        }
    }
    tracing::debug!(parent: &span, status = response.status().as_u16(), "answered");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The client's own id if it is fit to be repeated, else a new one.
fn request_id(request: &Request) -> HeaderValue {
    let given = request.headers().get(REQUEST_ID);
    let fit = |id: &&HeaderValue| {
        let text = id.to_str().unwrap_or("");
        !text.is_empty() && text.len() <= LONGEST_ID && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    given.filter(fit).cloned().unwrap_or_else(|| {
        let id = Uuid::new_v4().to_string();
        HeaderValue::from_str(&id).expect("a UUID is plain ASCII")
    })
}
