//! Routes of the Terraform backend.
//!
//! The client's own methods, LOCK and UNLOCK, cannot be described in `OpenAPI`. They reach
//! `locking` as the fallback of `/tf/{name}`, and do the same as POST and DELETE on
//! `/tf/{name}/lock`, which are described.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use leasehold::model::{Holder, LockName, Ttl, parse_duration};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;

use super::history;
use super::info::LockInfo;
use super::lock::{Locked, StateLock, Unlocked};
use super::quiet::Reply;
use super::state::{self, Writing};
use crate::access::{Caller, Role, STATE_LOCKS, Worker};
use crate::body::{Query, must_be_json, parse, read_up_to};
use crate::described::{DurationText, StateName, TerraformState};
use crate::problem::Problem;
use crate::roles::routes;
use crate::server::App;
use crate::status;

/// Minimum body timeout for a state, which is larger than other bodies and may take longer to arrive.
const STATE_TIME: Duration = Duration::from_mins(1);

pub(crate) fn routes() -> OpenApiRouter<App> {
    let (schemas, paths, methods) = routes!(Some(Role::Worker) => read, write, remove);
    OpenApiRouter::new()
        .routes((schemas, paths, methods.fallback(locking)))
        .routes(routes!(Some(Role::Worker) => lock, unlock))
        .merge(history::routes())
}

/// What stands behind the `?` of a lock.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LockQuery {
    /// How long the lock lasts without a write of the state, such as `2h`; the server's default if not said.
    #[param(value_type = Option<DurationText>)]
    ttl: Option<String>,
}

/// What stands behind the `?` of a write.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct WriteQuery {
    /// The ID that holds the lock. Without one a write is made only while nobody holds it.
    #[serde(rename = "ID")]
    #[param(max_length = 500)]
    id: Option<String>,
}

/// The state as it was last written.
///
/// It may contain secrets, so it needs a worker's token.
#[utoipa::path(
    get, path = "/tf/{name}", tag = "terraform", operation_id = "getTerraformState",
    params(("name" = StateName, Path, description = "The state; a '/' is written %2F")),
    responses(
        (status = OK, description = "The state", body = Object, content_type = "application/json"),
        (status = NOT_FOUND, description = "There is none", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn read(State(app): State<App>, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, _) = request.into_parts();
    Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    lock_name(&name)?;
    let store = app.leasehold().store();
    match state::read(&*store, &name).await? {
        Some(text) => Ok(json(text)),
        None => Err(history::unknown(&name).into()),
    }
}

/// Write the state, with the ID that holds its lock.
#[utoipa::path(
    post, path = "/tf/{name}", tag = "terraform", operation_id = "putTerraformState",
    params(("name" = StateName, Path, description = "The state; a '/' is written %2F"), WriteQuery),
    request_body(content = TerraformState, description = "The state", content_type = "application/json"),
    responses(
        (status = OK, description = "Written, and the lock renewed"),
        (status = CONFLICT, description = "The ID does not hold the lock, or there is none and somebody holds it", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn write(State(app): State<App>, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let by = caller.holder()?;
    let Query(WriteQuery { id }) = Query::from_request_parts(&mut parts, &app).await?;
    // Also protects against cross-site requests: a browser sends a preflight request before it
    // sends this type.
    must_be_json(&parts)?;
    let time = app.limits().body_time.max(STATE_TIME);
    let body = read_up_to(body, app.terraform().state_bytes, time).await?;
    let text = std::str::from_utf8(&body).map_err(|_| Problem::invalid("the state is not UTF-8"))?;
    let store = app.leasehold().store();
    let lock = state_lock(&*store, &name, &caller)?;
    let id = id.as_deref().filter(|id| !id.is_empty());
    Writing { lock, lock_id: id, by, options: app.terraform() }.put(text).await?;
    Ok(().into_response())
}

/// Remove the state; its history stays.
#[utoipa::path(
    delete, path = "/tf/{name}", tag = "terraform", operation_id = "deleteTerraformState",
    params(("name" = StateName, Path, description = "The state; a '/' is written %2F"), WriteQuery),
    responses(
        (status = OK, description = "There is none now"),
        (status = CONFLICT, description = "The ID does not hold the lock, or there is none and somebody holds it", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn remove(State(app): State<App>, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, _) = request.into_parts();
    let caller = Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let by = caller.holder()?;
    let Query(WriteQuery { id }) = Query::from_request_parts(&mut parts, &app).await?;
    let store = app.leasehold().store();
    let lock = state_lock(&*store, &name, &caller)?;
    let id = id.as_deref().filter(|id| !id.is_empty());
    Writing { lock, lock_id: id, by, options: app.terraform() }.delete().await?;
    Ok(().into_response())
}

/// Lock the state. The same ID again is the same lock.
///
/// The client's method LOCK on `/tf/{name}` does the same.
#[utoipa::path(
    post, path = "/tf/{name}/lock", tag = "terraform", operation_id = "lockTerraformState",
    params(("name" = StateName, Path, description = "The state; a '/' is written %2F"), LockQuery),
    request_body = LockInfo,
    responses(
        (status = OK, description = "It is yours"),
        (status = LOCKED, description = "Somebody else has it", body = LockInfo),
    ),
)]
async fn lock(State(app): State<App>, Path(name): Path<String>, request: Request) -> Reply {
    app.refuse_when_draining()?;
    let (mut parts, body) = request.into_parts();
    let caller = Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let by = caller.holder()?;
    let Query(LockQuery { ttl }) = Query::from_request_parts(&mut parts, &app).await?;
    must_be_json(&parts)?;
    let body = read_up_to(body, app.limits().body_bytes, app.limits().body_time).await?;
    let info = lock_info(&body)?;
    let ttl = match ttl {
        Some(ttl) => Ttl::new(parse_duration(&ttl)?)?,
        None => app.terraform().ttl,
    };
    let least = app.leasehold().capabilities().min_ttl;
    if ttl < least {
        return Err(Problem::invalid(format!(
            "a ttl of {ttl} is too short for this store; {least} is the least"
        ))
        .into());
    }
    let store = app.leasehold().store();
    match state_lock(&*store, &name, &caller)?.lock(&info, by, ttl).await? {
        Locked::Yes => Ok(().into_response()),
        Locked::By(info) => Ok((status::LOCKED, axum::Json(info)).into_response()),
    }
}

/// Unlock the state.
///
/// Without a body, or with a `LockInfo` that has only an ID, it is taken by force, which needs an admin's token and is kept in the
/// lock's history. The client's method UNLOCK on `/tf/{name}` does the same.
#[utoipa::path(
    delete, path = "/tf/{name}/lock", tag = "terraform", operation_id = "unlockTerraformState",
    params(("name" = StateName, Path, description = "The state; a '/' is written %2F")),
    request_body(content = Option<LockInfo>, description = "The one it was locked with"),
    responses(
        (status = OK, description = "It is free of that lock"),
        (status = NOT_FOUND, description = "Nobody has it, and that ID never had", body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "Somebody else has it", body = LockInfo),
    ),
)]
async fn unlock(State(app): State<App>, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let body = read_up_to(body, app.limits().body_bytes, app.limits().body_time).await?;
    let store = app.leasehold().store();
    let lock = state_lock(&*store, &name, &caller)?;
    let unlocked = if body.is_empty() {
        forced(&lock, None, &caller).await?
    } else {
        let info = lock_info(&body)?;
        // A client that has locked the state sends its `Who`. A client that sends only the ID
        // received the ID from a user.
        if info.who.is_empty() {
            forced(&lock, Some(&info.id), &caller).await?
        } else {
            lock.unlock(&info.id).await?
        }
    };
    match unlocked {
        Unlocked::Yes => Ok(().into_response()),
        Unlocked::By(info) => Ok((status::CONFLICT, axum::Json(info)).into_response()),
        Unlocked::Never => {
            let problem =
                Problem::new("LOCK_NOT_HELD", format!("the state '{name}' is not locked by that ID"));
            Err(problem.into())
        }
    }
}

async fn forced(lock: &StateLock<'_>, id: Option<&str>, caller: &Caller<Worker>) -> Reply<Unlocked> {
    caller.must_be(Role::Admin)?;
    let by: Holder = caller.holder()?;
    Ok(lock.force(id, by).await?)
}

/// Fallback on the path of a state: handles the client's own methods.
async fn locking(app: State<App>, name: Path<String>, request: Request) -> Reply {
    match request.method().as_str() {
        "LOCK" => lock(app, name, request).await,
        "UNLOCK" => unlock(app, name, request).await,
        method => {
            let detail = format!("{} does not take {method}", request.uri().path());
            Err(Problem::new("METHOD_NOT_ALLOWED", detail).hint("GET, POST, DELETE, LOCK and UNLOCK").into())
        }
    }
}

fn lock_info(body: &Bytes) -> Result<LockInfo, Problem> {
    parse(body).map_err(|problem| problem.at("LockInfo"))
}

fn lock_name(name: &str) -> Result<LockName, Problem> {
    Ok(LockName::new(format!("{STATE_LOCKS}{name}"))?)
}

fn state_lock<'a>(
    store: &'a dyn leasehold::store::Store,
    name: &'a str,
    caller: &'a Caller<Worker>,
) -> Result<StateLock<'a>, Problem> {
    Ok(StateLock { store, state: name, name: lock_name(name)?, who: caller.who() })
}

pub(super) fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}
