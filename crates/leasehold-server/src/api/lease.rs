//! Leases of locks: acquiring locks and waiting for them, the types of requests and responses, and checked
//! values of requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use leasehold::client::ReleaseRequestStatus;
use leasehold::model::{
    Holder, Lease, LeaseId, LeaseStatus, LockName, Metadata, Mode, Priority, Slots, Token, Ttl,
};
use leasehold::{Backoff, BootInstant, Error, Guard, LockBuilder, Strategy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use crate::access::{Caller, LeaseUse, Role, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{PositiveSeconds, TtlSeconds, WaitSeconds};
use crate::problem::{ApiResult, Problem};
use crate::request::body::MaybeJson;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(acquire))
}

/// Options of an acquire. All fields are optional: without a body the lease lasts 30 s and the
/// request does not wait.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AcquireBody {
    /// Name of the holder. Default: the name of the caller's API token.
    #[schema(example = "ci-runner-7")]
    holder: Option<Holder>,
    /// Time in seconds after which the lease expires unless it is renewed. Default: the `ttl` of
    /// the server's settings, or 30.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// Maximum time in seconds to wait while the lock is held, at most 60. Default: 0.
    #[schema(value_type = Option<WaitSeconds>)]
    wait_seconds: Option<f64>,
    /// `exclusive` for a single holder, `shared` for several shared holders. Default: `exclusive`.
    #[serde(default)]
    mode: Mode,
    /// Maximum number of concurrent holders of the lock. Default: 1.
    #[schema(value_type = Option<Slots>)]
    slots: Option<u32>,
    /// Priority in the queue, -1000 to 1000. Each step counts as an arrival 30 s earlier. Default: 0.
    #[schema(value_type = Option<Priority>)]
    priority: Option<i32>,
    /// Behaviour while the lock is held. Default: `wait` if `waitSeconds` is set, otherwise `failFast`.
    strategy: Option<AcquireStrategy>,
    /// Takes over a lease that was not renewed for this number of seconds, even if it has not
    /// expired. Requires the role operator.
    #[schema(value_type = Option<PositiveSeconds>)]
    stale_after_seconds: Option<f64>,
    /// Id of the lease, a random UUID chosen by the client. A repeated request with the same id
    /// returns the same lease and token. Allowed for a single lock only.
    lease_id: Option<LeaseId>,
    /// Keeps the position in the queue for 10 s if the wait times out, for the next request with
    /// the same `leaseId`. A client can thus wait for longer than a single request may take.
    #[serde(default)]
    keep_ticket: bool,
    /// Fails with DEADLOCK instead of waiting, if the request closes a ring of requests that wait for each
    /// other. A request belongs to a ring only if its metadata has `within`: the `leaseRef` of each lease
    /// that the client holds until the request is granted, separated by blanks. Not for tokens with scopes.
    /// Default: `false`.
    #[serde(default)]
    check_deadlock: bool,
    /// Other locks to acquire in the same request. Either all locks are acquired or none.
    #[serde(default)]
    with: Vec<LockName>,
    /// Metadata of the lease, shown with the lock. Default of `address`: the client's IP address.
    #[serde(default)]
    metadata: Metadata,
}

/// Behaviour of an acquire while the lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
enum AcquireStrategy {
    /// Fails immediately.
    FailFast,
    /// Retries after 1, 2, 4, 8 and 16 s within `waitSeconds`, without joining the queue.
    Retry,
    /// Waits in the fair queue for up to `waitSeconds`.
    Wait,
    /// Takes over a lease that was not renewed for `staleAfterSeconds`; otherwise behaves as
    /// without a strategy.
    StealStale,
}

/// Acquired locks.
#[derive(Serialize, ToSchema)]
struct AcquireReply {
    /// Always true.
    success: bool,
    /// Lease on the lock in the path.
    lock: HeldLock,
    /// Leases on the other requested locks, sorted by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    with: Vec<HeldLock>,
}

/// Acquires a lock, optionally waiting for it.
///
/// The lease expires after `ttlSeconds`; the client renews it for as long as it needs the lock. If
/// the connection breaks while the request waits, the server withdraws the request at once. With a
/// `leaseId` the server keeps its position in the queue for 10 s, for the same request on another
/// connection.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/acquire", tag = "locks", operation_id = "acquireLock",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F")),
    request_body = Option<AcquireBody>,
    responses(
        (status = OK, body = AcquireReply),
        (status = CONFLICT, description = "LOCK_CONFLICT: the lock is held, and the wait timed out; DEADLOCK: the wait would not end", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn acquire(
    app: App,
    caller: Caller<Worker>,
    LockPath(name): LockPath,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    MaybeJson(body): MaybeJson<AcquireBody>,
) -> ApiResult<Response> {
    app.refuse_when_draining()?;
    let has_client_id = body.lease_id.is_some();
    if let Some(id) = body.lease_id {
        // Before the acquire, which renews the lease, or refreshes or removes the ticket, of an earlier
        // request with its id.
        app.owners.check(&*app.leasehold.store(), &caller, &name, id, LeaseUse::Other).await?;
    }
    let lock = builder(&app, &caller, &name, body, from.map(|from| from.0.0))?;
    // Boxed because every request allocates the full size of the handler's future.
    let guard = match app.unless_draining(Box::pin(lock.acquire())).await? {
        Ok(guard) => guard,
        Err(error) => return Err(conflict(&app, error).await),
    };
    // The store grants a request with the lease id of another caller that caller's lease, which may have
    // been acquired after the check.
    if let Err(problem) = guard.leases().iter().try_for_each(|(_, lease)| caller.must_own(&lease.request)) {
        guard.detach();
        return Err(problem);
    }
    for (name, lease) in guard.leases() {
        app.owners.record(&name, &lease);
    }
    let response = LeaseResponse::new(guard, has_client_id);
    if let Err(error) = response.guard().confirm().await {
        return Err(conflict(&app, error).await);
    }
    let leases = response.guard().leases();
    let (requested, others): (Vec<_>, Vec<_>) = leases.iter().partition(|(held, _)| *held == name);
    let (_, lease) = requested.first().expect("the guard holds the requested lock");
    let remaining = response.guard().watch().borrow().valid_until.after(BootInstant::now());
    let with = others.iter().map(|(name, lease)| HeldLock::of(name, lease, remaining)).collect();
    let reply = AcquireReply { success: true, lock: HeldLock::of(&name, lease, remaining), with };
    Ok(response.with_json(&reply))
}

fn builder(
    app: &App,
    caller: &Caller<Worker>,
    name: &LockName,
    body: AcquireBody,
    from: Option<SocketAddr>,
) -> ApiResult<LockBuilder> {
    let strategy = strategy(app, &body)?;
    // The holder is a remote client, so the lease is not tied to the server's process.
    let mut lock = app.leasehold.lock(name).process(None).strategy(strategy);
    for other in body.with {
        caller.must_reach_lock(&other)?;
        lock = lock.and(other);
    }
    lock = match body.holder {
        Some(holder) => lock.holder(holder),
        None => lock.holder(caller.holder()?),
    };
    let requested = body.ttl_seconds.map(|seconds| lease_ttl(app, seconds)).transpose()?;
    if let Some(ttl) = requested.or(app.options.default_ttl) {
        lock = lock.ttl(ttl.as_duration());
    }
    if body.mode == Mode::Shared {
        lock = lock.shared();
    }
    if let Some(slots) = body.slots {
        lock = lock.slots(slots);
    }
    if let Some(priority) = body.priority {
        lock = lock.priority(priority);
    }
    if let Some(after) = body.stale_after_seconds {
        // The stolen lease may still be valid for its holder.
        caller.must_be(Role::Operator)?;
        lock = lock.steal_stale(ttl("staleAfterSeconds", after)?.as_duration());
    }
    if let Some(id) = body.lease_id {
        if id.as_uuid().is_nil() || id.as_uuid().is_max() {
            return Err(Problem::invalid(format!("invalid leaseId {id}: must be a random UUID")));
        }
        lock = lock.lease_id(id);
    }
    if body.keep_ticket {
        lock = lock.keep_ticket();
    }
    if body.check_deadlock {
        // The error names locks and holders that a token with scopes must not see.
        caller.must_reach_all()?;
        lock = lock.check_deadlock();
    }
    let mut metadata = body.metadata;
    if let (Some(from), None) = (from, metadata.get("address")) {
        // Omitted if the client's own metadata leaves no space for it.
        let _ = metadata.set("address", from.ip().to_canonical().to_string());
    }
    caller.stamp(&mut metadata);
    Ok(metadata.iter().fold(lock, |lock, (key, value)| lock.meta(key, value)))
}

fn strategy(app: &App, body: &AcquireBody) -> ApiResult<Strategy> {
    let max_wait = app.options.limits.wait;
    let timeout = body.wait_seconds.map(|wait| wait_time(app, wait)).transpose();
    let timeout = timeout.map_err(|problem| {
        problem.hint("to wait longer, repeat the request with the same leaseId and keepTicket: true")
    })?;
    let default = match timeout.unwrap_or_default() {
        Duration::ZERO if !body.keep_ticket => Strategy::FailFast,
        timeout => Strategy::Wait(Some(timeout)),
    };
    // Compares the number in the request: a wait below the resolution of `Duration` counts as a wait.
    let waits = body.keep_ticket || body.wait_seconds.is_some_and(|wait| wait > 0.0);
    match body.strategy {
        Some(AcquireStrategy::FailFast) if waits => Err(Problem::invalid(
            "the strategy failFast does not wait: omit waitSeconds and keepTicket, or choose another strategy",
        )),
        Some(AcquireStrategy::Retry) => Ok(Strategy::Retry(within(timeout.unwrap_or(max_wait)))),
        Some(AcquireStrategy::Wait) => Ok(Strategy::Wait(Some(timeout.unwrap_or(max_wait)))),
        Some(AcquireStrategy::StealStale) if body.stale_after_seconds.is_none() => {
            Err(Problem::invalid("the strategy stealStale requires staleAfterSeconds"))
        }
        None | Some(AcquireStrategy::FailFast | AcquireStrategy::StealStale) => Ok(default),
    }
}

/// Returns the backoff with as many attempts as fit into the timeout, even if jitter makes every
/// delay as long as possible.
fn within(timeout: Duration) -> Backoff {
    let all = Backoff::default();
    let delays = (0..all.max_retries)
        .map(|attempt| all.initial_delay.saturating_mul(1 << attempt).min(all.max_delay).mul_f64(1.25));
    let mut total = Duration::ZERO;
    let fit = delays.take_while(|delay| {
        total += *delay;
        total <= timeout
    });
    let max_retries = u32::try_from(fit.count()).unwrap_or(all.max_retries);
    all.max_retries(max_retries)
}

/// Converts an error. A conflict gets a `Retry-After`: the time until the first blocking lease expires.
async fn conflict(app: &App, error: Error) -> Problem {
    let Error::Conflict { conflict, .. } = &error else {
        return error.into();
    };
    let ends = conflict.holders.iter().map(|held| held.until).min();
    let problem = Problem::from(error)
        .hint("to wait for the lock, set waitSeconds; GET /api/v1/locks/{name} shows its holders");
    match (ends, app.leasehold.now().await) {
        (Some(ends), Ok(now)) => problem.retry_after(ends.since(now)),
        _ => problem,
    }
}

pub(crate) struct LockPath(pub(crate) LockName);

impl FromRequestParts<App> for LockPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let Path(name) = path.map_err(|error| Problem::invalid(error.body_text()))?;
        Ok(Self(LockName::new(name)?))
    }
}

/// Checks a number of seconds in a request: zero or more, at most ten years.
pub(crate) fn seconds(field: &str, value: f64) -> ApiResult<Duration> {
    let max = Ttl::MAX.as_duration().as_secs_f64();
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if value <= max => Ok(duration),
        _ => Err(Problem::invalid(format!(
            "invalid {field} {value}: must be a number of seconds from 0 to {max}"
        ))),
    }
}

/// Checks a TTL in a request.
pub(crate) fn ttl(field: &str, value: f64) -> ApiResult<Ttl> {
    Ttl::new(seconds(field, value)?).map_err(|invalid| Problem::invalid(format!("{field}: {invalid}")))
}

/// Checks the `ttlSeconds` of a lease, including the minimum TTL of the store.
pub(crate) fn lease_ttl(app: &App, value: f64) -> ApiResult<Ttl> {
    let (ttl, min) = (ttl("ttlSeconds", value)?, app.leasehold.capabilities().min_ttl);
    if ttl >= min {
        return Ok(ttl);
    }
    Err(Problem::invalid(format!("invalid ttlSeconds {value}: must be at least {min} for this store")))
}

/// Checks the `waitSeconds` of a request, including the maximum of the server.
pub(crate) fn wait_time(app: &App, value: f64) -> ApiResult<Duration> {
    let (wait, max) = (seconds("waitSeconds", value)?, app.options.limits.wait);
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
    status: LeaseStatus,
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
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    metadata: Metadata,
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
            metadata: request.metadata.clone(),
        }
    }
}

/// Response body that holds the guard until the connection takes the bytes.
struct LeaseResponse {
    guard: Option<Guard>,
    /// Whether the client chose the lease id and can repeat the request.
    has_client_id: bool,
    bytes: Bytes,
}

impl LeaseResponse {
    fn new(guard: Guard, has_client_id: bool) -> Self {
        Self { guard: Some(guard), has_client_id, bytes: Bytes::new() }
    }

    fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("the guard is present until the body is sent")
    }

    fn with_json(mut self, reply: &impl Serialize) -> Response {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_fit_into_the_timeout() {
        let tries = |seconds| within(Duration::from_secs(seconds)).max_retries;
        assert_eq!([0, 1, 2, 4, 10, 38, 39, 60].map(tries), [0, 0, 1, 2, 3, 4, 5, 5]);
    }
}
