//! Middleware that assigns each request an id, which is also in the response and in the log, and
//! writes problems.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::FutureExt;
use tracing::Instrument;
use uuid::Uuid;

use crate::problem::Problem;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const MAX_ID_BYTES: usize = 128;

/// Texts that reveal the address of the store. Responses omit them; operators find them in the log.
#[derive(Clone, Default)]
pub(crate) struct HiddenTexts(Arc<[String]>);

impl HiddenTexts {
    /// Returns the text without the hidden texts, also where no space precedes them.
    pub(crate) fn remove_from(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, hidden| {
            text.replace(hidden, "").replace(hidden.trim_start(), "(hidden)")
        })
    }

    pub(crate) fn address(url: &str) -> Self {
        // Errors name a local path without its scheme and its settings.
        let path = url.strip_prefix("sqlite:").map(|rest| rest.split('?').next().unwrap_or(rest));
        // Includes the preceding space, so that the remaining sentence stays well-formed.
        let texts = [Some(url), path].into_iter().flatten().filter(|text| text.len() > 1);
        Self(texts.map(|text| format!(" {text}")).collect())
    }
}

/// Assigns the request id, opens the log span and writes the problem of the response.
///
/// Keeps copies of what it needs later: a `Uri` or a header would keep the read buffer of the
/// connection in memory for as long as the request waits.
pub(crate) fn with_request_id<R: Future<Output = Response>>(
    hidden: &HiddenTexts,
    request: Request,
    run: impl FnOnce(Request) -> R,
) -> impl Future<Output = Response> {
    let (id, path) = (request_id(&request), Box::<str>::from(request.uri().path()));
    // The route pattern instead of the path, because the pattern has few distinct values.
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let span =
        tracing::info_span!("request", method = %request.method(), route, id = %id.to_str().unwrap_or(""));
    run(request).instrument(span.clone()).map(move |mut response| {
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            let written = problem.for_request(&path, id.to_str().unwrap_or(""), &hidden.0).to_response();
            let extra = std::mem::take(response.headers_mut());
            response = written;
            for (name, value) in &extra {
                if !response.headers().contains_key(name) && name != axum::http::header::CONTENT_LENGTH {
                    response.headers_mut().insert(name, value.clone());
                }
            }
        }
        tracing::debug!(parent: &span, status = response.status().as_u16(), "response sent");
        response.headers_mut().insert(REQUEST_ID, id);
        response
    })
}

/// Returns the client's request id if it is valid, otherwise a new id.
fn request_id(request: &Request) -> HeaderValue {
    let sent = request.headers().get(REQUEST_ID);
    let is_valid = |id: &&HeaderValue| {
        let text = id.to_str().unwrap_or("");
        !text.is_empty() && text.len() <= MAX_ID_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let copied = |id: &HeaderValue| HeaderValue::from_bytes(id.as_bytes()).ok();
    sent.filter(is_valid).and_then(copied).unwrap_or_else(|| {
        // The id need not be secret, so it is made without a system call.
        let id = uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid();
        HeaderValue::from_str(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
            .expect("a UUID is plain ASCII")
    })
}
