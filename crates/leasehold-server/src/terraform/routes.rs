//! Routes of the Terraform backend.
//!
//! The client's own methods, LOCK and UNLOCK, cannot be described in `OpenAPI`. They reach
//! `client_methods` as the fallback of `/tf/{name}`, and do the same as POST and DELETE on
//! `/tf/{name}/lock`, which are described.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use leasehold::model::{LockName, Ttl, parse_duration};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::lock::{LockInfo, StateLock, UnlockResult};
use super::state::{self, StateWrite};
use super::state_index::{self, StoredIndex, Version, docs};
use crate::access::{Caller, Reader, Role, STATE_LOCKS, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{DurationText, StateName, TerraformState};
use crate::problem::{ApiResult, Problem};
use crate::request::body::{Query, must_be_json, parse, read_up_to};
use crate::server::App;
use crate::status;

/// Minimum body timeout for a state, which is larger than other bodies and may take longer to arrive.
const STATE_TIME: Duration = Duration::from_mins(1);

/// Result type of the handlers of this backend.
type Reply<T = Response> = Result<T, TerraformError>;

/// Problem for a Terraform client, which authenticates with a name and a password and displays only
/// the status. The body is still sent, for users of other clients.
struct TerraformError(Problem);

impl<P: Into<Problem>> From<P> for TerraformError {
    fn from(problem: P) -> Self {
        Self(problem.into())
    }
}

impl IntoResponse for TerraformError {
    fn into_response(self) -> Response {
        self.0.with_basic_challenge().into_response()
    }
}

pub(crate) fn routes() -> OpenApiRouter<App> {
    let (schemas, paths, methods) = routes!(Some(Role::Worker) => read, write, remove);
    OpenApiRouter::new()
        .routes((schemas, paths, methods.fallback(client_methods)))
        .routes(routes!(Some(Role::Worker) => lock, unlock))
        .routes(routes!(Some(Role::Reader) => list))
        .routes(routes!(Some(Role::Worker) => get_version))
}

/// Query string of a lock request.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LockQuery {
    /// TTL of the lock, such as `2h`, counted from LOCK and from each write of the state. Default:
    /// the setting of the server.
    #[param(value_type = Option<DurationText>)]
    ttl: Option<String>,
}

/// Query string of a write.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct WriteQuery {
    /// ID that holds the lock. Without an ID the write succeeds only while the lock is free.
    #[serde(rename = "ID")]
    #[param(max_length = 500)]
    id: Option<String>,
}

/// Returns the current state.
///
/// A state may contain secrets, so the token needs the role worker.
#[utoipa::path(
    get, path = "/tf/{name}", tag = "terraform", operation_id = "getTerraformState",
    params(("name" = StateName, Path, description = "Name of the state; encode '/' as %2F")),
    responses(
        (status = OK, description = "Current state", body = Object, content_type = "application/json"),
        (status = NOT_FOUND, description = "UNKNOWN_STATE: the state does not exist", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn read(app: App, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, _) = request.into_parts();
    Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    lock_name(&name)?;
    let store = app.leasehold.store();
    match state::read(&*store, &name).await? {
        Some(text) => Ok(json(text)),
        None => Err(unknown(&name).into()),
    }
}

/// Writes the state with the ID that holds its lock.
#[utoipa::path(
    post, path = "/tf/{name}", tag = "terraform", operation_id = "putTerraformState",
    params(("name" = StateName, Path, description = "Name of the state; encode '/' as %2F"), WriteQuery),
    request_body(content = TerraformState, description = "New state", content_type = "application/json"),
    responses(
        (status = OK, description = "The state was written and the lock renewed"),
        (status = CONFLICT, description = "LEASE_LOST or LOCK_CONFLICT: the ID does not hold the lock, or the ID is missing and the lock is held", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn write(app: App, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let Query(WriteQuery { id }) = Query::from_request_parts(&mut parts, &app).await?;
    // Also protects against cross-site requests: a browser sends a preflight request before it
    // sends this type.
    must_be_json(&parts)?;
    let time = app.options.limits.body_time.max(STATE_TIME);
    let body = read_up_to(body, app.options.terraform.state_bytes, time).await?;
    let text = String::from_utf8(body.into());
    let text = text.map_err(|_| Problem::invalid("the state is not valid UTF-8"))?;
    StateChange { caller, name, id, text: Some(text) }.run(app).await
}

/// Deletes the state.
///
/// Its history remains.
#[utoipa::path(
    delete, path = "/tf/{name}", tag = "terraform", operation_id = "deleteTerraformState",
    params(("name" = StateName, Path, description = "Name of the state; encode '/' as %2F"), WriteQuery),
    responses(
        (status = OK, description = "The state does not exist any more"),
        (status = CONFLICT, description = "LEASE_LOST or LOCK_CONFLICT: the ID does not hold the lock, or the ID is missing and the lock is held", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn remove(app: App, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, _) = request.into_parts();
    let caller = Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let Query(WriteQuery { id }) = Query::from_request_parts(&mut parts, &app).await?;
    StateChange { caller, name, id, text: None }.run(app).await
}

/// Change of a state: a write or a deletion.
struct StateChange {
    caller: Caller<Worker>,
    name: String,
    /// ID that holds the lock.
    id: Option<String>,
    /// New text of the state; `None` deletes the state.
    text: Option<String>,
}

impl StateChange {
    /// Makes the change in a task of its own, which continues if the client disconnects: an interrupted write
    /// would leave chunks that no index names.
    async fn run(self, app: App) -> Reply {
        let permit = app.state_writes.permit(app.options.limits.wait).await?;
        let (to, from) = oneshot::channel();
        permit.spawn(async move {
            let (state, mut unused) = (self.name.clone(), Vec::new());
            let changed = self.apply(&app, &mut unused).await;
            // A client that has disconnected needs no response.
            let _ = to.send(changed);
            let store = app.leasehold.store();
            if let Some(docs) = store.documents() {
                state_index::delete_chunks(docs, &state, &unused).await;
            }
        });
        let aborted = |_| Problem::new("INTERNAL", "the change of a state ended unexpectedly");
        from.await.map_err(aborted)??;
        Ok(().into_response())
    }

    /// Makes the change. Adds versions whose chunks no index names to `unused`, also on an error. Drops the
    /// text and the caller: the deletion of those chunks may take long, and needs neither.
    async fn apply(self, app: &App, unused: &mut Vec<Version>) -> ApiResult<()> {
        let Self { caller, name, id, text } = self;
        let store = app.leasehold.store();
        let lock = state_lock(&*store, &name, &caller)?;
        let (id, by) = (id.as_deref().filter(|id| !id.is_empty()), caller.holder()?);
        let write = StateWrite { lock, lock_id: id, by, options: app.options.terraform };
        match text {
            Some(text) => write.put(&text, unused).await,
            None => write.delete(unused).await,
        }
    }
}

/// Locks the state.
///
/// A repeated request with the same ID returns the same lock. The method LOCK on `/tf/{name}` does
/// the same.
#[utoipa::path(
    post, path = "/tf/{name}/lock", tag = "terraform", operation_id = "lockTerraformState",
    params(("name" = StateName, Path, description = "Name of the state; encode '/' as %2F"), LockQuery),
    request_body = LockInfo,
    responses(
        (status = OK, description = "The lock was acquired"),
        (status = LOCKED, description = "Another client holds the lock", body = LockInfo),
    ),
)]
async fn lock(app: App, Path(name): Path<String>, request: Request) -> Reply {
    app.refuse_when_draining()?;
    let (mut parts, body) = request.into_parts();
    let caller = Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let by = caller.holder()?;
    let Query(LockQuery { ttl }) = Query::from_request_parts(&mut parts, &app).await?;
    must_be_json(&parts)?;
    let body = read_up_to(body, app.options.limits.body_bytes, app.options.limits.body_time).await?;
    let info = lock_info(&body)?;
    let ttl = match ttl {
        Some(ttl) => Ttl::new(parse_duration(&ttl)?)?,
        None => app.options.terraform.ttl,
    };
    let min = app.leasehold.capabilities().min_ttl;
    if ttl < min {
        let detail = format!("invalid ttl {ttl}: must be at least {min} for this store");
        return Err(Problem::invalid(detail).into());
    }
    let store = app.leasehold.store();
    match state_lock(&*store, &name, &caller)?.lock(&info, by, ttl).await? {
        None => Ok(().into_response()),
        Some(info) => Ok((status::LOCKED, axum::Json(info)).into_response()),
    }
}

/// Unlocks the state.
///
/// Without a body, or with a `LockInfo` that has only an ID, the lock is released by force. This
/// requires the role admin and is recorded in the history of the lock. The method UNLOCK on
/// `/tf/{name}` does the same.
#[utoipa::path(
    delete, path = "/tf/{name}/lock", tag = "terraform", operation_id = "unlockTerraformState",
    params(("name" = StateName, Path, description = "Name of the state; encode '/' as %2F")),
    request_body(content = Option<LockInfo>, description = "LockInfo that the state was locked with"),
    responses(
        (status = OK, description = "The ID does not hold the lock any more"),
        (status = NOT_FOUND, description = "LOCK_NOT_HELD: the lock is free, and the ID never held it", body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "Another client holds the lock", body = LockInfo),
    ),
)]
async fn unlock(app: App, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let body = read_up_to(body, app.options.limits.body_bytes, app.options.limits.body_time).await?;
    let store = app.leasehold.store();
    let lock = state_lock(&*store, &name, &caller)?;
    let info = (!body.is_empty()).then(|| lock_info(&body)).transpose()?;
    let result = match &info {
        Some(info) if !info.who.is_empty() => lock.unlock(&info.id).await?,
        // A client that has locked the state sends its `Who`. A client that sends only the ID received
        // the ID from a user.
        info => {
            caller.must_be(Role::Admin)?;
            lock.force_unlock(info.as_ref().map(|info| info.id.as_str()), caller.holder()?).await?
        }
    };
    match result {
        UnlockResult::Released => Ok(().into_response()),
        UnlockResult::HeldBy(info) => Ok((status::CONFLICT, axum::Json(info)).into_response()),
        UnlockResult::NotHeld => {
            let detail = format!("the state '{name}' is not locked by that ID");
            Err(Problem::new("LOCK_NOT_HELD", detail).into())
        }
    }
}

/// Fallback on the path of a state: handles the client's own methods.
async fn client_methods(app: App, name: Path<String>, request: Request) -> Reply {
    match request.method().as_str() {
        "LOCK" => lock(app, name, request).await,
        "UNLOCK" => unlock(app, name, request).await,
        method => {
            let detail = format!("{} does not support {method}", request.uri().path());
            let problem = Problem::new("METHOD_NOT_ALLOWED", detail);
            Err(problem.hint("allowed methods: GET, POST, DELETE, LOCK and UNLOCK").into())
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
    Ok(StateLock { store, state: name, name: lock_name(name)?, identity: caller })
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Versions of a state.
#[derive(Serialize, ToSchema)]
struct StateVersions {
    /// Kept versions, newest first.
    versions: Vec<StateVersion>,
}

/// Version of a state.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StateVersion {
    /// Id of the version.
    id: String,
    /// Serial number that the client assigned.
    serial: u64,
    /// Lineage that the client assigned to all versions of the state.
    lineage: String,
    /// Version of the client.
    terraform_version: String,
    /// Size in bytes.
    bytes: u64,
    /// SHA-256 of the text, in hexadecimal.
    sha256: String,
    /// Time of the write.
    #[schema(format = DateTime)]
    written_at: String,
    /// Name of the API token of the write.
    written_by: String,
    /// Fencing token of the lock at the time of the write.
    token: u64,
    /// Whether this is the current version.
    current: bool,
}

/// Lists the kept versions of a state, newest first.
#[utoipa::path(
    get, path = "/tf/{name}/history", tag = "terraform", operation_id = "listTerraformStateVersions",
    params(("name" = StateName, Path, description = "Name of the state; encode '/' as %2F")),
    responses(
        (status = OK, body = StateVersions),
        (status = NOT_FOUND, description = "UNKNOWN_STATE: the state never existed", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn list(app: App, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, _) = request.into_parts();
    Caller::<Reader>::from_request_parts(&mut parts, &app).await?;
    let store = app.leasehold.store();
    let index = StoredIndex::load(docs(&*store)?, &name).await?.index;
    if index.versions.is_empty() {
        return Err(unknown(&name).into());
    }
    let current = index.current().map(|version| version.id.clone());
    let view = |version: Version| StateVersion {
        current: current.as_ref() == Some(&version.id),
        id: version.id,
        serial: version.serial,
        lineage: version.lineage,
        terraform_version: version.client,
        bytes: version.bytes,
        sha256: version.sha256,
        written_at: format!("{:#}", version.at),
        written_by: version.by,
        token: version.token.get(),
    };
    let versions = index.versions.into_iter().map(view).collect();
    Ok(axum::Json(StateVersions { versions }).into_response())
}

/// Returns a version of a state, by its serial number or its id.
///
/// If several versions have the same serial number, the newest is returned.
#[utoipa::path(
    get, path = "/tf/{name}/history/{serial}", tag = "terraform", operation_id = "getTerraformStateVersion",
    params(
        ("name" = StateName, Path, description = "Name of the state; encode '/' as %2F"),
        ("serial" = String, Path, description = "Serial number or id of the version"),
    ),
    responses(
        (status = OK, description = "State of that version", body = Object, content_type = "application/json"),
        (status = NOT_FOUND, description = "UNKNOWN_STATE: the version does not exist or is not kept any more", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn get_version(app: App, Path((name, serial)): Path<(String, String)>, request: Request) -> Reply {
    let (mut parts, _) = request.into_parts();
    Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let store = app.leasehold.store();
    let docs = docs(&*store)?;
    let index = StoredIndex::load(docs, &name).await?.index;
    let wanted = |version: &&Version| version.id == serial || version.serial.to_string() == serial;
    let Some(version) = index.versions.iter().find(wanted) else {
        let detail = format!("the state '{name}' has no version {serial}, or it is not kept any more");
        return Err(Problem::new("UNKNOWN_STATE", detail).into());
    };
    Ok(json(state_index::read_chunks(docs, &name, version).await?))
}

fn unknown(name: &str) -> Problem {
    Problem::new("UNKNOWN_STATE", format!("there is no state '{name}'"))
}
