//! Acquires locks and waits for them.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use leasehold::model::{Holder, LeaseId, LockName, Metadata, Mode, Priority, Slots};
use leasehold::{Backoff, BootInstant, Error, LockBuilder, Strategy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::lease::{HeldLock, LeaseResponse, LockPath, lease_ttl, ttl, wait_time};
use crate::access::{Caller, Role, Worker};
use crate::body::MaybeJson;
use crate::problem::{ApiResult, Problem};
use crate::roles::routes;
use crate::schemas::{PositiveSeconds, TtlSeconds, WaitSeconds};
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
        (status = CONFLICT, description = "LOCK_CONFLICT: the lock is held, and the wait timed out", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn acquire(
    State(app): State<App>,
    caller: Caller<Worker>,
    LockPath(name): LockPath,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    MaybeJson(body): MaybeJson<AcquireBody>,
) -> ApiResult<Response> {
    app.refuse_when_draining()?;
    let has_client_id = body.lease_id.is_some();
    let lock = builder(&app, &caller, &name, body, from.map(|from| from.0.0))?;
    // Boxed because every request allocates the full size of the handler's future.
    let acquired = app.unless_draining(async { Ok(Box::pin(lock.acquire()).await) }).await?;
    let guard = match acquired {
        Ok(guard) => guard,
        Err(error) => return Err(conflict(&app, error).await),
    };
    // The store grants a request with the lease id of another caller that caller's lease.
    if let Err(problem) =
        guard.leases().iter().try_for_each(|(_, lease)| caller.identity().must_own(&lease.request))
    {
        guard.detach();
        return Err(problem);
    }
    for (name, lease) in guard.leases() {
        app.owners().record(&name, &lease);
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
    let mut lock = app.leasehold().lock(name).process(None).strategy(strategy);
    for other in body.with {
        caller.identity().must_reach_lock(&other)?;
        lock = lock.and(other);
    }
    lock = match body.holder {
        Some(holder) => lock.holder(holder),
        None => lock.holder(caller.holder()?),
    };
    let requested = body.ttl_seconds.map(|seconds| lease_ttl(app, seconds)).transpose()?;
    if let Some(ttl) = requested.or(app.default_ttl()) {
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
    let mut metadata = body.metadata;
    if let (Some(from), None) = (from, metadata.get("address")) {
        // Omitted if the client's own metadata leaves no space for it.
        let _ = metadata.set("address", from.ip().to_canonical().to_string());
    }
    caller.identity().stamp(&mut metadata);
    Ok(metadata.iter().fold(lock, |lock, (key, value)| lock.meta(key, value)))
}

fn strategy(app: &App, body: &AcquireBody) -> ApiResult<Strategy> {
    let max_wait = app.limits().wait;
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
    match (ends, app.leasehold().now().await) {
        (Some(ends), Ok(now)) => problem.retry_after(ends.since(now)),
        _ => problem,
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
