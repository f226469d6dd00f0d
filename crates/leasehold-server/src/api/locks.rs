//! Locks over HTTP: holding, giving back, looking, stepping in.

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use leasehold::model::{Holder, LeaseId, LockName, Reason, Status, Token};
use leasehold::store::{Cursor, ListLocks, LockState, Page};
use leasehold::{BootInstant, LockStatus};
use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::lease::{HeldLock, LeaseBody, LockPath, lease_ttl};
use crate::access::{Admin, Caller, Operator, Reader, Worker};
use crate::body::{Json, MaybeJson, Query};
use crate::described::{PageCursor, PageSize, TtlSeconds, Yes};
use crate::problem::{Answer, Problem};
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(look, force_release))
        .routes(routes!(renew))
        .routes(routes!(release))
        .routes(routes!(ask))
}

/// Which lease, and how long it is to last from now on.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RenewBody {
    /// As acquire gave it.
    lease_id: LeaseId,
    /// As acquire gave it.
    token: Token,
    /// From now on last so long; as before if not said.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
}

/// The lock is still yours.
#[derive(Serialize, ToSchema)]
struct Renewed {
    /// Always true.
    success: bool,
    /// The lease. Its `asked` says if somebody wants you to stop.
    lock: HeldLock,
}

/// It is done.
#[derive(Serialize, ToSchema)]
struct Done {
    /// Always true.
    success: bool,
}

/// Why the holder should stop.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AskBody {
    /// Shown to the holder, and kept in the history.
    #[schema(example = "deploy is waiting")]
    reason: Option<Reason>,
}

/// The holders will learn it at their next renewal.
#[derive(Serialize, ToSchema)]
struct Asked {
    /// Always true.
    success: bool,
    /// The lock.
    name: LockName,
    /// How many holders were asked.
    #[serde(rename = "asked")]
    count: u32,
    /// Who asked.
    by: Holder,
}

/// Whom the lock is taken from, and why.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ForceBody {
    /// Kept in the history.
    #[schema(example = "the runner is gone")]
    reason: Reason,
    /// The token of the holder, as you saw it: if the lock has moved on since, nothing happens.
    expected_token: Token,
}

/// The lock was taken from its holder.
#[derive(Serialize, ToSchema)]
struct Forced {
    /// Always true.
    success: bool,
    /// How it is now.
    lock: LockStatus,
}

/// Which locks.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Names that begin with this.
    #[serde(default)]
    prefix: String,
    /// Locks in this state; all if not said.
    #[serde(default)]
    #[param(inline, value_type = Option<Filter>)]
    status: String,
    /// `next` of the page before.
    #[serde(default)]
    #[param(value_type = Option<PageCursor>)]
    cursor: String,
    /// At most so many, 1 to 1000; 100 if not said.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// A state to list by.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
enum Filter {
    /// Somebody holds it.
    Held,
    /// Nobody does.
    Free,
    /// Somebody waits for it.
    Waited,
    /// Somebody holds it or waits for it.
    InUse,
    /// The record still names a holder whose lease has ended.
    Stale,
    /// A live lease that nobody has asked to stop.
    Active,
    /// A live lease whose holder was asked to stop.
    Releasing,
    /// Given back, and yet kept for its least time.
    Released,
}

/// A page of locks.
#[derive(Serialize, ToSchema)]
struct Locks {
    /// By name.
    locks: Vec<LockStatus>,
    /// Give it as `cursor` for the next page; there is none after the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Hold a lock for longer: its ttl counts from now.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/renew", tag = "locks", operation_id = "renewLock",
    params(("name" = LockName, Path, description = "The lock; a '/' is written %2F")),
    request_body = RenewBody,
    responses(
        (status = OK, body = Renewed),
        (status = NOT_FOUND, description = "That lease does not hold the lock: stop", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn renew(
    State(app): State<App>,
    caller: Caller<Worker>,
    LockPath(name): LockPath,
    Json(lease): Json<RenewBody>,
) -> Answer<axum::Json<Renewed>> {
    app.owners().check(&*app.leasehold().store(), caller.who(), &name, lease.lease_id).await?;
    let ttl = lease.ttl_seconds.map(|lasts| lease_ttl(&app, lasts)).transpose()?;
    let sent = BootInstant::now();
    let lease = app.leasehold().renew_lease(&name, lease.lease_id, lease.token, ttl).await?;
    let remaining = sent.plus(lease.ask.ttl.as_duration()).after(BootInstant::now());
    Ok(axum::Json(Renewed { success: true, lock: HeldLock::of(&name, &lease, remaining) }))
}

/// Give a lock back; the next who waits has it in the same step.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/release", tag = "locks", operation_id = "releaseLock",
    params(("name" = LockName, Path, description = "The lock; a '/' is written %2F")),
    request_body = LeaseBody,
    responses(
        (status = OK, body = Done),
        (status = NOT_FOUND, description = "That lease does not hold the lock", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn release(
    State(app): State<App>,
    caller: Caller<Worker>,
    LockPath(name): LockPath,
    Json(lease): Json<LeaseBody>,
) -> Answer<axum::Json<Done>> {
    app.owners().check(&*app.leasehold().store(), caller.who(), &name, lease.lease_id).await?;
    app.leasehold().release_lease(&name, lease.lease_id, lease.token).await?;
    app.owners().forget(&name, lease.lease_id);
    Ok(axum::Json(Done { success: true }))
}

/// Ask the holders of a lock to stop when they can. They learn it at their next renewal, and need not obey.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/ask", tag = "locks", operation_id = "askRelease",
    params(("name" = LockName, Path, description = "The lock; a '/' is written %2F")),
    request_body = Option<AskBody>,
    responses(
        (status = OK, body = Asked),
        (status = NOT_FOUND, description = "Nobody holds it", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn ask(
    State(app): State<App>,
    caller: Caller<Operator>,
    LockPath(name): LockPath,
    MaybeJson(ask): MaybeJson<AskBody>,
) -> Answer<axum::Json<Asked>> {
    let by = caller.holder()?;
    let count = app.leasehold().ask_release(&name, by.clone(), ask.reason).await?;
    Ok(axum::Json(Asked { success: true, name, count, by }))
}

/// See a lock: who holds it, who waits for it. One that was never used is free.
#[utoipa::path(
    get, path = "/api/v1/locks/{name}", tag = "locks", operation_id = "getLock",
    params(("name" = LockName, Path, description = "The lock; a '/' is written %2F")),
    responses(
        (status = OK, body = LockStatus),
    ),
)]
async fn look(
    State(app): State<App>,
    _: Caller<Reader>,
    LockPath(name): LockPath,
) -> Answer<axum::Json<LockStatus>> {
    Ok(axum::Json(app.leasehold().status(&name).await?))
}

/// List locks by name, a page at a time.
#[utoipa::path(
    get, path = "/api/v1/locks", tag = "locks", operation_id = "listLocks",
    params(ListQuery),
    responses(
        (status = OK, body = Locks),
    ),
)]
async fn list(
    State(app): State<App>,
    caller: Caller<Reader>,
    Query(query): Query<ListQuery>,
) -> Answer<axum::Json<Locks>> {
    let filter = filter(&query.status)?;
    let ask = ListLocks {
        prefix: given(query.prefix),
        state: filter.map(Filter::state),
        after: given(query.cursor).map(Cursor),
        limit: page_size(query.limit)?,
    };
    caller.who().must_reach_locks(ask.prefix.as_deref())?;
    let Page { mut items, next } = app.leasehold().list(&ask).await?;
    if let Some(status) = filter.and_then(Filter::lease) {
        items.retain(|lock| lock.holders.iter().any(|held| !held.stale && held.status == status));
    }
    Ok(axum::Json(Locks { locks: items, next: next.map(|next| next.0) }))
}

/// Take a lock from its holder, now. Needs `force=true`.
///
/// The holder may still be at work: its token is old from then on, for whatever checks it.
#[utoipa::path(
    delete, path = "/api/v1/locks/{name}", tag = "locks", operation_id = "forceRelease",
    params(
        ("name" = LockName, Path, description = "The lock; a '/' is written %2F"),
        ("force" = Yes, Query, description = "Has to be true"),
    ),
    request_body = ForceBody,
    responses(
        (status = OK, body = Forced),
        (status = BAD_REQUEST, description = "Without force=true, or a value that cannot be", body = Problem, content_type = "application/problem+json"),
        (status = NOT_FOUND, description = "Nobody holds it with that token", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn force_release(
    State(app): State<App>,
    caller: Caller<Admin>,
    LockPath(name): LockPath,
    _: Force,
    Json(force): Json<ForceBody>,
) -> Answer<axum::Json<Forced>> {
    let by = caller.holder()?;
    let lock = app.leasehold().force_release(&name, force.expected_token, by, force.reason).await?;
    Ok(axum::Json(Forced { success: true, lock }))
}

/// Somebody who means it. Asked for before the body is read: without it the body does not matter.
struct Force;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForceQuery {
    #[serde(default)]
    force: bool,
}

impl FromRequestParts<App> for Force {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Query(query) = Query::<ForceQuery>::from_request_parts(parts, app).await?;
        if query.force {
            return Ok(Self);
        }
        let problem = Problem::invalid(
            "this takes the lock from its holder, and has to be meant: force=true is missing",
        );
        Err(problem.hint(
            "to give back a lock of your own: POST …/release; to ask its holder to stop: POST …/ask; to take it: DELETE …?force=true",
        ))
    }
}

/// What a query says, if it says anything.
fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// How many at a time.
pub(super) fn page_size(limit: Option<u32>) -> Answer<u32> {
    match limit {
        None => Ok(100),
        Some(limit @ 1..=1000) => Ok(limit),
        Some(limit) => Err(Problem::invalid(format!("limit cannot be {limit}; it is 1 to 1000"))),
    }
}

fn filter(word: &str) -> Answer<Option<Filter>> {
    if word.is_empty() {
        return Ok(None);
    }
    let known = Filter::deserialize(word.into_deserializer());
    known.map(Some).map_err(|error: serde::de::value::Error| Problem::invalid(format!("status: {error}")))
}

impl Filter {
    fn state(self) -> LockState {
        match self {
            Self::Held | Self::Active | Self::Releasing | Self::Released => LockState::Held,
            Self::Free => LockState::Free,
            Self::Waited => LockState::Waited,
            Self::InUse => LockState::InUse,
            Self::Stale => LockState::Stale,
        }
    }

    /// What one of its live leases has to be, too.
    fn lease(self) -> Option<Status> {
        match self {
            Self::Active => Some(Status::Active),
            Self::Releasing => Some(Status::Releasing),
            Self::Released => Some(Status::Released),
            _ => None,
        }
    }
}
