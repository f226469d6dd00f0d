//! The paths of the store protocol, and what a server says of itself.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use leasehold::store::protocol::Hello;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;

use super::described::{DocCallName, ListenArguments, LockCallName, ProtocolVersion, TaskCallName};
use super::stamp::Terms;
use super::{docs, locks, tasks, wakes};
use crate::access::{Caller, Reader, Role};
use crate::body::{Size, Unread};
use crate::problem::{Answer, Problem};
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(capabilities))
        .routes(routes!(lock_call))
        .routes(routes!(task_call))
        .routes(routes!(doc_call))
        .routes(routes!(wake_call))
}

/// What this server is and can do.
#[utoipa::path(
    get, path = "/api/v1/store/capabilities", tag = "store", operation_id = "storeCapabilities",
    params(("leasehold-protocol" = ProtocolVersion, Header, description = "The version of the protocol: 1")),
    responses(
        (status = OK, description = "As the library writes it", body = Value),
    ),
)]
async fn capabilities(State(app): State<App>, caller: Caller<Reader>, _: Terms) -> Response {
    let store = app.leasehold().store();
    let has = (store.tasks().is_some(), store.docs().is_some());
    let hello = Hello::new(env!("CARGO_PKG_VERSION"), &store.capabilities(), has);
    Json(Hello { worker_tag: caller.who().worker_tag(), ..hello }).into_response()
}

/// A call on locks: `apply`, `get`, `peek`, `list`, `history`, `now`, `sweep` or `forget`.
#[utoipa::path(
    post, path = "/api/v1/store/locks/{call}", tag = "store", operation_id = "storeLocks",
    params(
        ("call" = LockCallName, Path, description = "Which call"),
        ("leasehold-protocol" = ProtocolVersion, Header, description = "The version of the protocol: 1"),
        ("leasehold-until" = Option<String>, Header, description = "The reading of the server's clock at which it may begin at the latest"),
    ),
    request_body(content = Vec<Value>, description = "The arguments of the call, as the library writes them"),
    responses(
        (status = OK, description = "Its result, as the library writes it", body = Value),
        (status = NOT_FOUND, description = "There is no such call", body = Problem, content_type = "application/problem+json"),
        (status = REQUEST_TIMEOUT, description = "It came late and was not begun", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn lock_call(
    State(app): State<App>,
    caller: Caller<Reader>,
    terms: Terms,
    Path(call): Path<String>,
    body: Unread,
) -> Answer<Response> {
    let call = which(&call)?;
    terms.must_be_in_time(&app)?;
    let body = body.read(&app, Size::Usual).await?;
    locks::call(&app, &caller, call, &terms, &body).await
}

/// A call on tasks: `enqueue`, `lease`, `heartbeat`, `leave`, `settle`, `change`, `recover`, `get`, `keyed`, `list`,
/// `queues`, `pause`, `workers`, `archive`, `purge` or `now`.
#[utoipa::path(
    post, path = "/api/v1/store/tasks/{call}", tag = "store", operation_id = "storeTasks",
    params(
        ("call" = TaskCallName, Path, description = "Which call"),
        ("leasehold-protocol" = ProtocolVersion, Header, description = "The version of the protocol: 1"),
        ("leasehold-until" = Option<String>, Header, description = "The reading of the server's clock at which it may begin at the latest"),
    ),
    request_body(content = Vec<Value>, description = "The arguments of the call, as the library writes them"),
    responses(
        (status = OK, description = "Its result, as the library writes it", body = Value),
        (status = NOT_FOUND, description = "There is no such call", body = Problem, content_type = "application/problem+json"),
        (status = REQUEST_TIMEOUT, description = "It came late and was not begun", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn task_call(
    State(app): State<App>,
    caller: Caller<Reader>,
    terms: Terms,
    Path(call): Path<String>,
    body: Unread,
) -> Answer<Response> {
    let call = which(&call)?;
    terms.must_be_in_time(&app)?;
    let role = tasks::role(call);
    caller.must_be(role)?;
    let body = body.read(&app, size_for(role)).await?;
    tasks::call(&app, caller.who(), call, &body).await
}

/// A call on documents: `get`, `put_if`, `list` or `time`.
#[utoipa::path(
    post, path = "/api/v1/store/docs/{call}", tag = "store", operation_id = "storeDocs",
    params(
        ("call" = DocCallName, Path, description = "Which call"),
        ("leasehold-protocol" = ProtocolVersion, Header, description = "The version of the protocol: 1"),
        ("leasehold-until" = Option<String>, Header, description = "The reading of the server's clock at which it may begin at the latest"),
    ),
    request_body(content = Vec<Value>, description = "The arguments of the call, as the library writes them"),
    responses(
        (status = OK, description = "Its result, as the library writes it", body = Value),
        (status = NOT_FOUND, description = "There is no such call", body = Problem, content_type = "application/problem+json"),
        (status = REQUEST_TIMEOUT, description = "It came late and was not begun", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn doc_call(
    State(app): State<App>,
    caller: Caller<Reader>,
    terms: Terms,
    Path(call): Path<String>,
    body: Unread,
) -> Answer<Response> {
    let call = which(&call)?;
    terms.must_be_in_time(&app)?;
    let role = docs::role(call);
    caller.must_be(role)?;
    let body = body.read(&app, size_for(role)).await?;
    docs::call(&app, &caller, call, &body).await
}

/// Wait for wake-ups: answered as soon as there is one, and after 30 seconds in any case.
#[utoipa::path(
    post, path = "/api/v1/store/wakes", tag = "store", operation_id = "storeWakes",
    params(("leasehold-protocol" = ProtocolVersion, Header, description = "The version of the protocol: 1")),
    request_body(content = ListenArguments, description = "What the caller listens for, as the library writes it"),
    responses(
        (status = OK, description = "Who may have been served, as the library writes it", body = Value),
    ),
)]
async fn wake_call(
    State(app): State<App>,
    caller: Caller<Reader>,
    _: Terms,
    body: Unread,
) -> Answer<Response> {
    let body = body.read(&app, Size::List).await?;
    wakes::call(&app, caller.who(), &body).await
}

/// Who may only look has little to say.
fn size_for(role: Role) -> Size {
    if role > Role::Reader { Size::Large } else { Size::Usual }
}

/// Which call a word means.
fn which<C: DeserializeOwned>(word: &str) -> Answer<C> {
    serde_json::from_value(Value::String(word.to_owned())).map_err(|_| {
        let problem = Problem::new("UNKNOWN_PATH", format!("there is no call '{}'", word.escape_debug()));
        problem.hint("use the same version of leasehold on both sides")
    })
}

/// A result, as the library writes it.
pub(super) fn answer<T: Serialize>(result: leasehold::Result<T>) -> Answer<Response> {
    Ok(Json(result?).into_response())
}
