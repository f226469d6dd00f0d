//! Reading a request: bounded in size and time, JSON with complaints that say where.

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

/// A request's body as JSON. It has to say that it is JSON, which also keeps web pages of strangers from sending one:
/// a browser asks first before it sends that type to another site.
pub(crate) struct Json<T>(pub(crate) T);

/// A request's body as JSON, or the default if there is none.
pub(crate) struct MaybeJson<T>(pub(crate) T);

/// The raw bytes of a request's body.
pub(crate) struct Raw(pub(crate) Bytes);

/// The bytes of a JSON body of the store protocol, which may be larger than others.
pub(crate) struct Large(pub(crate) Bytes);

/// What stands behind the `?`.
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

impl FromRequest<App> for Large {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        must_be_json(&parts)?;
        let bytes = LARGEST_BODY.max(app.limits().body_bytes);
        read_up_to(body, bytes, app.limits().body_time).await.map(Self)
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

/// Reads JSON, or says what is wrong with it and where.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        let what = if error.is_data() { "the body does not fit" } else { "the body is not JSON" };
        Problem::invalid(format!("{what}: {error}"))
    })
}

async fn read(body: Body, app: &App) -> Result<Bytes, Problem> {
    read_up_to(body, app.limits().body_bytes, app.limits().body_time).await
}

/// Reads a body for which another size is allowed.
pub(crate) async fn read_up_to(body: Body, bytes: usize, time: Duration) -> Result<Bytes, Problem> {
    let reading = Limited::new(body, bytes).collect();
    let read = tokio::time::timeout(time, reading).await;
    let Ok(read) = read else {
        return Err(slow(time));
    };
    match read {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let detail = format!("the body is larger than {bytes} bytes");
            Err(Problem::new("TOO_LARGE", detail))
        }
        Err(_) => Err(Problem::invalid("the body could not be read to its end")),
    }
}

fn slow(limit: Duration) -> Problem {
    Problem::new("TOO_SLOW", format!("the body did not arrive within {} s", limit.as_secs()))
}
