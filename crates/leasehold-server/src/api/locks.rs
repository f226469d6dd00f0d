//! Locks over HTTP: renewing, releasing, querying, checking a token, requesting and forcing a release.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use leasehold::client::{DeadlocksView, LockExplanationView};
use leasehold::model::{Holder, LeaseId, LeaseStatus, LockName, Reason, Token};
use leasehold::store::{Cursor, ListLocks, LockState, Page};
use leasehold::{BootInstant, LockStatus};
use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::lease::{HeldLock, LeaseBody, LockPath, lease_ttl};
use crate::access::{Admin, Caller, LeaseUse, Operator, Reader, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{Confirmation, PageCursor, PageSize, TtlSeconds};
use crate::problem::{ApiResult, Problem, Reply};
use crate::request::body::{Json, MaybeJson, Query};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, force_release))
        .routes(routes!(why))
        .routes(routes!(deadlocks))
        .routes(routes!(renew))
        .routes(routes!(release))
        .routes(routes!(request_release))
        .routes(routes!(check))
}

/// Options of a renewal.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RenewBody {
    /// Lease id from the acquire response.
    lease_id: LeaseId,
    /// Fencing token from the acquire response.
    token: Token,
    /// New TTL in seconds. Default: the current TTL of the lease.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
}

/// Result of a renewal.
#[derive(Serialize, ToSchema)]
struct RenewReply {
    /// Always true.
    success: bool,
    /// Renewed lease. `releaseRequest` is set if a release was requested.
    lock: HeldLock,
}

/// Result of a release.
#[derive(Serialize, ToSchema)]
struct ReleaseReply {
    /// Always true.
    success: bool,
}

/// Options of a release request.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AskReleaseBody {
    /// Reason, shown to the holder and recorded in the history.
    #[schema(example = "deploy is waiting")]
    reason: Option<Reason>,
}

/// Result of a release request. The holders receive the request with their next renewal.
#[derive(Serialize, ToSchema)]
struct AskReleaseReply {
    /// Always true.
    success: bool,
    /// Name of the lock.
    name: LockName,
    /// Number of holders that received the request.
    #[serde(rename = "holders")]
    count: u32,
    /// Name of the caller.
    by: Holder,
}

/// Options of a forced release.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ForceReleaseBody {
    /// Reason, recorded in the history.
    #[schema(example = "the runner is gone")]
    reason: Reason,
    /// Fencing token of the lease to remove. If the lock has a newer holder, nothing changes.
    expected_token: Token,
}

/// Result of a forced release.
#[derive(Serialize, ToSchema)]
struct ForceReleaseReply {
    /// Always true.
    success: bool,
    /// Status of the lock after the release.
    lock: LockStatus,
}

/// Query for locks.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListLocksQuery {
    /// Only locks whose names start with this prefix.
    #[serde(default)]
    prefix: String,
    /// Only locks in this state. Default: all.
    #[param(inline, value_type = Option<LockFilter>)]
    status: Option<String>,
    /// `nextCursor` of the previous page.
    #[serde(default)]
    #[param(value_type = Option<PageCursor>)]
    cursor: String,
    /// Maximum number of locks, 1 to 1000. Default: 100.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// State of listed locks.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
enum LockFilter {
    /// The lock has a holder.
    Held,
    /// The lock has no holder.
    Free,
    /// The lock has waiters.
    Waited,
    /// The lock has a holder or waiters.
    InUse,
    /// The record names a holder whose lease has expired.
    Stale,
    /// The lock has an active lease without a release request.
    Active,
    /// The lock has an active lease whose holder was asked to release it.
    Releasing,
    /// The holder has released the lock, and the lease is retained for its minimum hold time.
    Released,
}

/// Page of locks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct LockPage {
    /// Locks, sorted by name.
    locks: Vec<LockStatus>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Renews a lease: its TTL is counted from now.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/renew", tag = "locks", operation_id = "renewLock",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F")),
    request_body = RenewBody,
    responses(
        (status = OK, body = RenewReply),
        (status = NOT_FOUND, description = "LOCK_NOT_HELD: the lease does not hold the lock; the client must stop its work", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn renew(
    app: App,
    caller: Caller<Worker>,
    LockPath(name): LockPath,
    Json(lease): Json<RenewBody>,
) -> Reply<RenewReply> {
    let (id, used) = (lease.lease_id, LeaseUse::Lease(lease.token));
    app.owners.check(&*app.leasehold.store(), &caller, &name, id, used).await?;
    let ttl = lease.ttl_seconds.map(|seconds| lease_ttl(&app, seconds)).transpose()?;
    let sent = BootInstant::now();
    let lease = app.leasehold.locks().renew(&name, lease.lease_id, lease.token, ttl).await?;
    let remaining = sent.plus(lease.request.ttl.as_duration()).after(BootInstant::now());
    Ok(axum::Json(RenewReply { success: true, lock: HeldLock::of(&name, &lease, remaining) }))
}

/// Releases a lock and grants it to the next waiter in the same step.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/release", tag = "locks", operation_id = "releaseLock",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F")),
    request_body = LeaseBody,
    responses(
        (status = OK, body = ReleaseReply),
        (status = NOT_FOUND, description = "LOCK_NOT_HELD: the lease does not hold the lock", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn release(
    app: App,
    caller: Caller<Worker>,
    LockPath(name): LockPath,
    Json(lease): Json<LeaseBody>,
) -> Reply<ReleaseReply> {
    let (id, used) = (lease.lease_id, LeaseUse::Lease(lease.token));
    app.owners.check(&*app.leasehold.store(), &caller, &name, id, used).await?;
    app.leasehold.locks().release(&name, id, lease.token).await?;
    app.owners.remove(&name, id);
    Ok(axum::Json(ReleaseReply { success: true }))
}

/// Requests that the holders release a lock.
///
/// They receive the request with their next renewal and may ignore it.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/ask", tag = "locks", operation_id = "askRelease",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F")),
    request_body = Option<AskReleaseBody>,
    responses(
        (status = OK, body = AskReleaseReply),
        (status = NOT_FOUND, description = "LOCK_NOT_HELD: the lock has no holder", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn request_release(
    app: App,
    caller: Caller<Operator>,
    LockPath(name): LockPath,
    MaybeJson(body): MaybeJson<AskReleaseBody>,
) -> Reply<AskReleaseReply> {
    let by = caller.holder()?;
    let count = app.leasehold.locks().request_release(&name, by.clone(), body.reason).await?;
    Ok(axum::Json(AskReleaseReply { success: true, name, count, by }))
}

/// Returns a lock with its holders and waiters.
///
/// A lock that was never used is free.
#[utoipa::path(
    get, path = "/api/v1/locks/{name}", tag = "locks", operation_id = "getLock",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F")),
    responses((status = OK, body = LockStatus)),
)]
async fn get(app: App, _: Caller<Reader>, LockPath(name): LockPath) -> Reply<LockStatus> {
    Ok(axum::Json(app.leasehold.locks().status(&name).await?))
}

/// Explains a lock.
///
/// The reasons hold at one point in time: who holds the lock, whether the holder still renews its
/// lease, who waits in which order and for what, and what frees the lock; or why it is free.
#[utoipa::path(
    get, path = "/api/v1/locks/{name}/why", tag = "locks", operation_id = "explainLock",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F")),
    responses((status = OK, body = LockExplanationView)),
)]
async fn why(app: App, _: Caller<Reader>, LockPath(name): LockPath) -> Reply<LockExplanationView> {
    let explanation = app.leasehold.locks().why(&name).await?;
    Ok(axum::Json(LockExplanationView::new(&explanation, "leasehold")))
}

/// Finds deadlocks: rings of leases and requests that wait for each other.
///
/// Reads all locks with waiters, at most 10,000, and those of a possible ring a second time: a ring is
/// returned only if it has not changed in between. A request belongs to a ring only if it declares the
/// leases that it was made within; see `checkDeadlock` of the acquire.
#[utoipa::path(
    get, path = "/api/v1/deadlocks", tag = "locks", operation_id = "findDeadlocks",
    responses((status = OK, body = DeadlocksView)),
)]
async fn deadlocks(app: App, _: Caller<Reader>) -> Reply<DeadlocksView> {
    Ok(axum::Json(DeadlocksView::new(&app.leasehold.locks().deadlocks().await?, "leasehold")))
}

/// Lists locks, sorted by name.
#[utoipa::path(
    get, path = "/api/v1/locks", tag = "locks", operation_id = "listLocks", params(ListLocksQuery),
    responses((status = OK, body = LockPage)),
)]
async fn list(app: App, caller: Caller<Reader>, Query(query): Query<ListLocksQuery>) -> Reply<LockPage> {
    let filter = query.status.as_deref().map(LockFilter::parse).transpose()?;
    let (state, status) = filter.map(LockFilter::resolve).unzip();
    let list = ListLocks::default()
        .prefix(non_empty(query.prefix))
        .state(state)
        .after(non_empty(query.cursor).map(Cursor))
        .limit(page_size(query.limit)?);
    caller.must_reach_locks(list.prefix.as_deref())?;
    let Page { mut items, next, .. } = app.leasehold.locks().list(&list).await?;
    if let Some(status) = status.flatten() {
        items.retain(|lock| lock.holders.iter().any(|held| !held.stale && held.status == status));
    }
    Ok(axum::Json(LockPage { locks: items, next_cursor: next.map(|next| next.0) }))
}

/// Releases a lock by force.
///
/// Requires `force=true`. The holder may still be running: its fencing token is stale from then on,
/// for every resource that checks tokens.
#[utoipa::path(
    delete, path = "/api/v1/locks/{name}", tag = "locks", operation_id = "forceRelease",
    params(
        ("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F"),
        ("force" = Confirmation, Query, description = "Must be true"),
    ),
    request_body = ForceReleaseBody,
    responses(
        (status = OK, body = ForceReleaseReply),
        (status = BAD_REQUEST, description = "INVALID: force=true is missing, or a value is not allowed", body = Problem, content_type = "application/problem+json"),
        (status = NOT_FOUND, description = "LOCK_NOT_HELD: no holder has this token", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn force_release(
    app: App,
    caller: Caller<Admin>,
    LockPath(name): LockPath,
    _: Forced,
    Json(force): Json<ForceReleaseBody>,
) -> Reply<ForceReleaseReply> {
    let by = caller.holder()?;
    let lock = app.leasehold.locks().force_release(&name, force.expected_token, by, force.reason).await?;
    Ok(axum::Json(ForceReleaseReply { success: true, lock }))
}

/// Confirmation by `force=true`. Checked before the body, which is irrelevant without the confirmation.
struct Forced;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForceQuery {
    #[serde(default)]
    force: bool,
}

impl FromRequestParts<App> for Forced {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Query(query) = Query::<ForceQuery>::from_request_parts(parts, app).await?;
        if query.force {
            return Ok(Self);
        }
        let problem =
            Problem::invalid("a forced release takes the lock from its holder and requires force=true");
        Err(problem.hint(
            "to release your own lock: POST …/release; to request a release: POST …/ask; to force it: DELETE …?force=true",
        ))
    }
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

pub(crate) fn page_size(limit: Option<u32>) -> ApiResult<u32> {
    match limit {
        None => Ok(100),
        Some(limit @ 1..=1000) => Ok(limit),
        Some(limit) => Err(Problem::invalid(format!("invalid limit {limit}: must be 1 to 1000"))),
    }
}

impl LockFilter {
    fn parse(text: &str) -> ApiResult<Self> {
        let known = Self::deserialize(text.into_deserializer());
        known.map_err(|error: serde::de::value::Error| Problem::invalid(format!("status: {error}")))
    }

    /// Returns the state of the locks, and the status that one of their active leases must have.
    fn resolve(self) -> (LockState, Option<LeaseStatus>) {
        match self {
            Self::Held => (LockState::Held, None),
            Self::Free => (LockState::Free, None),
            Self::Waited => (LockState::Waited, None),
            Self::InUse => (LockState::InUse, None),
            Self::Stale => (LockState::Stale, None),
            Self::Active => (LockState::Held, Some(LeaseStatus::Active)),
            Self::Releasing => (LockState::Held, Some(LeaseStatus::Releasing)),
            Self::Released => (LockState::Held, Some(LeaseStatus::Released)),
        }
    }
}

/// Fencing token to check.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FenceBody {
    /// Fencing token of the lease.
    token: Token,
}

/// Result for a token whose lease is active.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct FenceReply {
    /// Always true.
    success: bool,
    /// Always true.
    valid: bool,
    /// Name of the lock.
    name: LockName,
    /// Checked token.
    token: Token,
    /// Newest token of the lock; differs from `token` only if the lock has several holders.
    newest: Token,
    /// Name of the holder.
    holder: String,
    /// Time at which the lease expires unless it is renewed.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Checks whether the lease of a fencing token is active.
///
/// Meant for resources that cannot remember the highest token themselves.
#[utoipa::path(
    post, path = "/api/v1/fence/{name}", tag = "locks", operation_id = "checkFence",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F")),
    request_body = FenceBody,
    responses(
        (status = OK, body = FenceReply),
        (status = CONFLICT, description = "STALE_TOKEN: the lease has ended; the resource must reject the request", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn check(
    app: App,
    _: Caller<Worker>,
    LockPath(name): LockPath,
    Json(FenceBody { token }): Json<FenceBody>,
) -> Reply<FenceReply> {
    let status = app.leasehold.locks().check_fence(&name, token).await?;
    let held = status.holders.iter().find(|held| held.token == token);
    let held = held.expect("a valid token belongs to an active lease");
    Ok(axum::Json(FenceReply {
        success: true,
        valid: true,
        name,
        token,
        newest: status.token,
        holder: held.holder.to_string(),
        expires_at: format!("{:#}", held.expires_at),
    }))
}
