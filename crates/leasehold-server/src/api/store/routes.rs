//! Endpoints of the store protocol.

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use leasehold::store::DocumentStore;
use leasehold::store::protocol::{Hello, LARGEST_BODY, Listen, MAX_LISTENED, MAX_POLL_SECONDS};
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;

use super::deadline::{
    DocCallName, ListenArguments, LockCallName, ProtocolVersion, RequestDeadline, TaskCallName, json_result,
};
use super::{docs, locks, tasks};
use crate::access::{Caller, Reader, Role};
use crate::openapi::roles::routes;
use crate::problem::{ApiResult, Problem};
use crate::request::body::{UnreadBody, parse};
use crate::server::App;

/// Maximum size of a body with subscriptions: three lists of up to 10,000 ids or names, most of them short.
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(capabilities))
        .routes(routes!(lock_call))
        .routes(routes!(task_call))
        .routes(routes!(doc_call))
        .routes(routes!(poll_notifications))
}

/// Returns the version and the capabilities of this server.
#[utoipa::path(
    get, path = "/api/v1/store/capabilities", tag = "store", operation_id = "storeCapabilities",
    params(("leasehold-protocol" = ProtocolVersion, Header, description = "Version of the protocol: 1")),
    responses((status = OK, description = "Capabilities, as serialized by the library", body = Value)),
)]
async fn capabilities(app: App, caller: Caller<Reader>, _: RequestDeadline) -> Response {
    let store = app.leasehold.store();
    let has = (store.tasks().is_some(), store.documents().is_some());
    let hello = Hello::new(env!("CARGO_PKG_VERSION"), &store.capabilities(), has);
    let doc_reads_may_be_old = store.documents().is_some_and(DocumentStore::reads_may_be_old);
    Json(Hello { worker_tag: caller.worker_tag(), doc_reads_may_be_old, ..hello }).into_response()
}

/// Executes a lock call.
///
/// One of `apply`, `get`, `peek`, `list`, `history`, `now`, `sweep` or `forget`.
#[utoipa::path(
    post, path = "/api/v1/store/locks/{call}", tag = "store", operation_id = "storeLocks",
    params(
        ("call" = LockCallName, Path, description = "Name of the call"),
        ("leasehold-protocol" = ProtocolVersion, Header, description = "Version of the protocol: 1"),
        ("leasehold-until" = Option<String>, Header, description = "Deadline of the call, as a reading of the server's clock"),
    ),
    request_body(content = Vec<Value>, description = "Arguments of the call, as serialized by the library"),
    responses(
        (status = OK, description = "Result of the call, as serialized by the library", body = Value),
        (status = NOT_FOUND, description = "UNKNOWN_PATH: the call does not exist", body = Problem, content_type = "application/problem+json"),
        (status = REQUEST_TIMEOUT, description = "LATE: the request arrived after its deadline and was not executed", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn lock_call(
    app: App,
    caller: Caller<Reader>,
    deadline: RequestDeadline,
    Path(call): Path<String>,
    body: UnreadBody,
) -> ApiResult<Response> {
    let call = parse_call(&call)?;
    deadline.must_be_in_time(&app)?;
    let body = body.read(&app, 0).await?;
    locks::call(&app, &caller, call, &deadline, &body).await
}

/// Executes a task call.
///
/// One of `enqueue`, `lease`, `heartbeat`, `deregister`, `settle`, `change`, `recover`, `get`, `get_by_key`,
/// `list`, `queues`, `pause`, `workers`, `archive`, `purge` or `now`.
#[utoipa::path(
    post, path = "/api/v1/store/tasks/{call}", tag = "store", operation_id = "storeTasks",
    params(
        ("call" = TaskCallName, Path, description = "Name of the call"),
        ("leasehold-protocol" = ProtocolVersion, Header, description = "Version of the protocol: 1"),
        ("leasehold-until" = Option<String>, Header, description = "Deadline of the call, as a reading of the server's clock"),
    ),
    request_body(content = Vec<Value>, description = "Arguments of the call, as serialized by the library"),
    responses(
        (status = OK, description = "Result of the call, as serialized by the library", body = Value),
        (status = NOT_FOUND, description = "UNKNOWN_PATH: the call does not exist", body = Problem, content_type = "application/problem+json"),
        (status = REQUEST_TIMEOUT, description = "LATE: the request arrived after its deadline and was not executed", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn task_call(
    app: App,
    caller: Caller<Reader>,
    deadline: RequestDeadline,
    Path(call): Path<String>,
    body: UnreadBody,
) -> ApiResult<Response> {
    let call = parse_call(&call)?;
    deadline.must_be_in_time(&app)?;
    let role = tasks::role(call);
    caller.must_be(role)?;
    let body = body.read(&app, max_bytes(role)).await?;
    tasks::call(&app, &caller, call, &body).await
}

/// Executes a document call.
///
/// One of `get`, `put_if`, `list` or `time`.
#[utoipa::path(
    post, path = "/api/v1/store/docs/{call}", tag = "store", operation_id = "storeDocs",
    params(
        ("call" = DocCallName, Path, description = "Name of the call"),
        ("leasehold-protocol" = ProtocolVersion, Header, description = "Version of the protocol: 1"),
        ("leasehold-until" = Option<String>, Header, description = "Deadline of the call, as a reading of the server's clock"),
    ),
    request_body(content = Vec<Value>, description = "Arguments of the call, as serialized by the library"),
    responses(
        (status = OK, description = "Result of the call, as serialized by the library", body = Value),
        (status = NOT_FOUND, description = "UNKNOWN_PATH: the call does not exist", body = Problem, content_type = "application/problem+json"),
        (status = REQUEST_TIMEOUT, description = "LATE: the request arrived after its deadline and was not executed", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn doc_call(
    app: App,
    caller: Caller<Reader>,
    deadline: RequestDeadline,
    Path(call): Path<String>,
    body: UnreadBody,
) -> ApiResult<Response> {
    let call = parse_call(&call)?;
    deadline.must_be_in_time(&app)?;
    let role = docs::role(call);
    caller.must_be(role)?;
    let body = body.read(&app, max_bytes(role)).await?;
    docs::call(&app, &caller, call, &body).await
}

/// Waits for notifications.
///
/// Responds as soon as there is one, and after 30 seconds at the latest.
#[utoipa::path(
    post, path = "/api/v1/store/notifications", tag = "store", operation_id = "storeNotifications",
    params(("leasehold-protocol" = ProtocolVersion, Header, description = "Version of the protocol: 1")),
    request_body(content = ListenArguments, description = "Subscriptions of the client, as serialized by the library"),
    responses(
        (status = OK, description = "Waiters, queues and holders with changes, as serialized by the library", body = Value),
    ),
)]
async fn poll_notifications(
    app: App,
    caller: Caller<Reader>,
    _: RequestDeadline,
    body: UnreadBody,
) -> ApiResult<Response> {
    let body = body.read(&app, MAX_LIST_BYTES).await?;
    let (list,): (Listen,) = parse(&body)?;
    if list.leases.len().max(list.queues.len()).max(list.notices.len()) > MAX_LISTENED {
        return Err(Problem::invalid(format!("too many subscriptions: at most {MAX_LISTENED} of each kind")));
    }
    list.queues.iter().try_for_each(|queue| caller.must_reach_queue(queue))?;
    app.refuse_when_draining()?;
    let timeout = app.options.limits.wait.min(Duration::from_secs(MAX_POLL_SECONDS));
    let session = app.protocol_state.sessions.of(list.client);
    let store = app.leasehold.store();
    let notifications = app.unless_draining(session.poll(&store, list, timeout)).await?;
    json_result(Ok(notifications))
}

/// Returns the maximum size of a body beyond that of any other request: readers send small bodies, other
/// callers many tasks, or a document.
fn max_bytes(role: Role) -> usize {
    if role > Role::Reader { LARGEST_BODY } else { 0 }
}

fn parse_call<C: DeserializeOwned>(name: &str) -> ApiResult<C> {
    serde_json::from_value(Value::String(name.to_owned())).map_err(|_| {
        let problem = Problem::new("UNKNOWN_PATH", format!("there is no call '{}'", name.escape_debug()));
        problem.hint("use the same version of leasehold for the client and the server")
    })
}
