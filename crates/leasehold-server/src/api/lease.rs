//! Request and response types of lock leases, and checked values of requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use leasehold::Guard;
use leasehold::client::ReleaseRequestStatus;
use leasehold::model::{Lease, LeaseId, LockName, Mode, Status, Token, Ttl};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::server::App;

/// Extractor for the lock name in the path.
pub(crate) struct LockPath(pub(crate) LockName);

impl FromRequestParts<App> for LockPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let Path(name) = path.map_err(|error| Problem::invalid(error.body_text()))?;
        Ok(Self(LockName::new(name)?))
    }
}

/// Checks a number of seconds in a request: zero or more, at most ten years.
pub(crate) fn seconds(field: &str, value: f64) -> Result<Duration, Problem> {
    let max = Ttl::MAX.as_duration().as_secs_f64();
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if value <= max => Ok(duration),
        _ => Err(Problem::invalid(format!(
            "invalid {field} {value}: must be a number of seconds from 0 to {max}"
        ))),
    }
}

/// Checks a TTL in a request.
pub(crate) fn ttl(field: &str, value: f64) -> Result<Ttl, Problem> {
    Ttl::new(seconds(field, value)?).map_err(|invalid| Problem::invalid(format!("{field}: {invalid}")))
}

/// Checks the `ttlSeconds` of a lease, including the minimum TTL of the store.
pub(crate) fn lease_ttl(app: &App, value: f64) -> Result<Ttl, Problem> {
    let (ttl, min) = (ttl("ttlSeconds", value)?, app.leasehold().capabilities().min_ttl);
    if ttl >= min {
        return Ok(ttl);
    }
    Err(Problem::invalid(format!("invalid ttlSeconds {value}: must be at least {min} for this store")))
}

/// Checks the `waitSeconds` of a request, including the maximum of the server.
pub(crate) fn wait_time(app: &App, value: f64) -> Result<Duration, Problem> {
    let (wait, max) = (seconds("waitSeconds", value)?, app.limits().wait);
    if wait <= max {
        return Ok(wait);
    }
    Err(Problem::invalid(format!("invalid waitSeconds {value}: must be at most {}", max.as_secs_f64())))
}

/// Lease of the caller.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LeaseBody {
    /// Lease id from the acquire response.
    pub(crate) lease_id: LeaseId,
    /// Fencing token from the acquire response.
    pub(crate) token: Token,
}

/// Lease on a lock.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeldLock {
    /// Name of the lock.
    #[schema(example = "terraform/prod")]
    name: LockName,
    /// Id of the lease, required to renew and release it.
    lease_id: LeaseId,
    /// Name of the holder.
    #[schema(example = "ci-runner-7")]
    holder: String,
    /// Fencing token, which increases with every grant. The client passes it to the resources that
    /// the lock protects.
    #[schema(example = 1_730_817_135_123_456_u64)]
    token: Token,
    /// `exclusive` or `shared`.
    mode: Mode,
    /// Maximum number of concurrent holders of the lock.
    slots: u32,
    /// Status of the lease; `releasing` if a release was requested.
    status: Status,
    /// Time of the grant.
    #[schema(format = DateTime)]
    acquired_at: String,
    /// Time of the last renewal.
    #[schema(format = DateTime)]
    renewed_at: String,
    /// Expiry time by the clock of the store. For the client's own clock use `remainingSeconds`.
    #[schema(format = DateTime)]
    expires_at: String,
    /// Minimum remaining time of the lease when the server sent this response. A client counts it
    /// from the time at which it received the response and subtracts the maximum transmission time,
    /// or it renews first: then the lease lasts at least `ttlSeconds` from the time at which the
    /// client sent the renewal.
    #[schema(example = 29.9)]
    remaining_seconds: f64,
    /// TTL in seconds, counted from each renewal.
    #[schema(example = 30.0)]
    ttl_seconds: f64,
    /// Number of renewals.
    renewals: u64,
    /// Request to release the lock, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    release_request: Option<ReleaseRequestStatus>,
    /// Metadata of the lease.
    metadata: BTreeMap<String, String>,
}

impl HeldLock {
    /// Creates the view of a lease that lasts at least for `remaining` from now.
    pub(crate) fn of(name: &LockName, lease: &Lease, remaining: Duration) -> Self {
        let request = &lease.request;
        let release_request = lease.release_request.as_ref();
        Self {
            name: name.clone(),
            lease_id: request.lease_id,
            holder: request.holder.to_string(),
            token: lease.token,
            mode: request.mode,
            slots: request.slots.get(),
            status: lease.status,
            acquired_at: format!("{:#}", lease.acquired_at),
            renewed_at: format!("{:#}", lease.renewed_at),
            expires_at: format!("{:#}", lease.expires_at),
            remaining_seconds: remaining.as_secs_f64(),
            ttl_seconds: request.ttl.as_duration().as_secs_f64(),
            renewals: lease.renewals,
            release_request: release_request.map(ReleaseRequestStatus::from),
            metadata: request
                .metadata
                .iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        }
    }
}

/// Response body that holds the guard until the connection takes the bytes.
pub(crate) struct LeaseResponse {
    guard: Option<Guard>,
    /// Whether the client chose the lease id and can repeat the request.
    has_client_id: bool,
    bytes: Bytes,
}

impl LeaseResponse {
    pub(crate) fn new(guard: Guard, has_client_id: bool) -> Self {
        Self { guard: Some(guard), has_client_id, bytes: Bytes::new() }
    }

    /// Returns the guard of the lease.
    pub(crate) fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("the guard is present until the body is sent")
    }

    /// Returns the response with this JSON as its body.
    pub(crate) fn with_json(mut self, reply: &impl Serialize) -> Response {
        self.bytes = serde_json::to_vec(reply).unwrap_or_default().into();
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], Body::new(self)).into_response()
    }
}

impl hyper::body::Body for LeaseResponse {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.guard.take().map(|guard| {
            guard.detach();
            Ok(Frame::data(std::mem::take(&mut self.bytes)))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.guard.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

impl Drop for LeaseResponse {
    fn drop(&mut self) {
        if self.has_client_id
            && let Some(guard) = self.guard.take()
        {
            guard.detach();
        }
    }
}
