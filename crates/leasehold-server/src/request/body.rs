//! Extractors for requests: limited in size and time; errors in JSON name their position.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::problem::Problem;
use crate::request::strict::Strict;
use crate::server::App;

/// Maximum number of bytes, and maximum time, for which the rest of a body that is too large is read.
const MAX_DISCARDED: usize = 16 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Request body as JSON. The content type must be JSON, which also protects against cross-site
/// requests: a browser sends a preflight request before it sends that type to another site.
pub(crate) struct Json<T>(pub(crate) T);

/// Request body as JSON, or the default value if the body is empty.
pub(crate) struct MaybeJson<T>(pub(crate) T);

/// JSON body of the store protocol that has not been read yet, because its maximum size depends on
/// the call.
pub(crate) struct UnreadBody(Body);

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

impl FromRequest<App> for UnreadBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        must_be_json(&parts)?;
        Ok(Self(body))
    }
}

impl UnreadBody {
    /// Reads the body, with the limit of any other request or this one, whichever is larger. Call this
    /// only after the caller is authorized to send a body of this size.
    pub(crate) async fn read(self, app: &App, max_bytes: usize) -> Result<Bytes, Problem> {
        let limits = &app.options.limits;
        read_up_to(self.0, max_bytes.max(limits.body_bytes), limits.body_time).await
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

pub(crate) async fn read(body: Body, app: &App) -> Result<Bytes, Problem> {
    read_up_to(body, app.options.limits.body_bytes, app.options.limits.body_time).await
}

/// Reads a body with a size limit and a timeout of its own.
pub(crate) async fn read_up_to(mut body: Body, bytes: usize, time: Duration) -> Result<Bytes, Problem> {
    match tokio::time::timeout(time, Limited::new(&mut body, bytes).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(Problem::new("TOO_LARGE", format!("the body is larger than {bytes} bytes")))
        }
        Ok(Err(_)) => Err(Problem::invalid("the body is incomplete")),
        Err(_) => {
            Err(Problem::new("TOO_SLOW", format!("the body did not arrive within {} s", time.as_secs())))
        }
    }
}

/// Reads and drops the rest of a body that is too large, within limits. A connection that is closed while its
/// client still sends is reset, and the client may lose the response.
async fn discard(mut body: Body) {
    let read = async {
        let mut left = MAX_DISCARDED;
        while left > 0
            && let Some(Ok(frame)) = body.frame().await
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, read).await;
}
