//! Extractors for requests: limited in size and time; errors in JSON name their position.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use leasehold::store::protocol::LARGEST_BODY;
use serde::de::DeserializeOwned;

use crate::problem::Problem;
use crate::server::App;
use crate::strict::Strict;

/// Request body as JSON. The content type must be JSON, which also protects against cross-site
/// requests: a browser sends a preflight request before it sends that type to another site.
pub(crate) struct Json<T>(pub(crate) T);

/// Request body as JSON, or the default value if the body is empty.
pub(crate) struct MaybeJson<T>(pub(crate) T);

/// Raw bytes of a request body.
pub(crate) struct Raw(pub(crate) Bytes);

/// JSON body of the store protocol that has not been read yet, because its maximum size depends on
/// the call.
pub(crate) struct UnreadBody(Body);

/// Size class of a body in the store protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodySize {
    /// The limit of any other request; the maximum for callers with the role reader.
    Default,
    /// The list of everything that a client listens for.
    List,
    /// Many tasks, or a document.
    Large,
}

/// Three lists of up to 10,000 ids or names, most of them short.
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Query string of the request URI.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        must_be_json(&parts)?;
        let bytes = read(body, app).await?;
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<App> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(body, app).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        must_be_json(&parts)?;
        parse(&bytes).map(Self)
    }
}

impl FromRequest<App> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        read(request.into_body(), app).await.map(Self)
    }
}

impl FromRequest<App> for UnreadBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        must_be_json(&parts)?;
        Ok(Self(body))
    }
}

impl UnreadBody {
    /// Reads the body. Call this only after the caller is authorized to send a body of this size.
    pub(crate) async fn read(self, app: &App, size: BodySize) -> Result<Bytes, Problem> {
        let default = app.limits().body_bytes;
        let bytes = match size {
            BodySize::Default => default,
            BodySize::List => MAX_LIST_BYTES.max(default),
            BodySize::Large => LARGEST_BODY.max(default),
        };
        read_up_to(self.0, bytes, app.limits().body_time).await
    }
}

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|error| Problem::invalid(error.body_text()))
    }
}

pub(crate) fn must_be_json(parts: &Parts) -> Result<(), Problem> {
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let detail = format!("the body has the type '{kind}', not application/json");
    Err(Problem::new("NOT_JSON", detail).hint("send the header: Content-Type: application/json"))
}

/// Parses JSON strictly; the error names the problem and its position.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = T::deserialize(Strict(&mut json)).and_then(|read| json.end().map(|()| read));
    read.map_err(|error| {
        let reason = if error.is_data() { "invalid body" } else { "the body is not valid JSON" };
        Problem::invalid(format!("{reason}: {error}"))
    })
}

async fn read(body: Body, app: &App) -> Result<Bytes, Problem> {
    read_up_to(body, app.limits().body_bytes, app.limits().body_time).await
}

/// Reads a body with a size limit and a timeout of its own.
pub(crate) async fn read_up_to(body: Body, bytes: usize, time: Duration) -> Result<Bytes, Problem> {
    let reading = Limited::new(body, bytes).collect();
    let read = tokio::time::timeout(time, reading).await;
    let Ok(read) = read else {
        return Err(timeout_problem(time));
    };
    match read {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let detail = format!("the body is larger than {bytes} bytes");
            Err(Problem::new("TOO_LARGE", detail))
        }
        Err(_) => Err(Problem::invalid("the body is incomplete")),
    }
}

fn timeout_problem(limit: Duration) -> Problem {
    Problem::new("TOO_SLOW", format!("the body did not arrive within {} s", limit.as_secs()))
}
