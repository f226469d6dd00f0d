//! Executions over HTTP: querying, aborting, and running them in external processes.

use axum::extract::Path;
use axum::http::StatusCode;
use leasehold::model::{
    ExecutionId, ExecutionInput, Holder, Metadata, Payload, Progress, Reason, StaleToken, TaskKey, TaskState,
    Timestamp, Token, Ttl, WorkerId, WorkflowName,
};
use leasehold::store::Cursor;
use leasehold::{Execution, ExecutionEnd, ListExecutions};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::lease::lease_ttl;
use super::locks::page_size;
use super::page_parts::list_executions;
use super::tasks::{ProgressBody, must_own};
use crate::access::{Caller, Operator, Reader, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{PageCursor, PageSize, TtlSeconds};
use crate::problem::{ApiResult, Problem, Reply};
use crate::request::body::{Json, MaybeJson, Query};
use crate::server::App;
use crate::status;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(abort))
        .routes(routes!(heartbeat))
        .routes(routes!(complete))
}

/// Execution of a workflow.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecutionBody {
    /// Id of the execution.
    #[schema(example = "exec_01890a5d-ac96-774b-bcce-b302099a8057")]
    id: String,
    /// Name of the workflow.
    workflow: String,
    /// State: `blocked` while it waits for earlier executions, `pending`, `running`, `succeeded`,
    /// `failed` or `aborted`.
    #[schema(example = "running")]
    state: &'static str,
    /// Reason why it failed or was aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Input of the execution.
    #[schema(value_type = serde_json::Value)]
    input: Payload,
    /// Result of a successful execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
    /// Reported progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    progress: Option<Progress>,
    /// Idempotency key of the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Number of the attempt for this key, starting at 1.
    attempt: u32,
    /// Id of the failed execution whose key this one reuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_of: Option<String>,
    /// Maximum run time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_runtime_seconds: Option<f64>,
    /// Starter: the name of the API token, the trigger or the schedule. On a server without tokens,
    /// the name that the caller claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "ci")]
    started_by: Option<String>,
    /// Metadata of the start.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Metadata,
    /// Fencing token of the run; 0 before the first run.
    token: u64,
    /// Version, incremented with each change.
    version: u64,
    /// Name of the caller that requested the abort.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_requested_by: Option<String>,
    /// Creation time.
    #[schema(format = DateTime)]
    created_at: String,
    /// Time at which the run began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    started_at: Option<String>,
    /// Time at which the lease of the run expires without a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    lease_expires_at: Option<String>,
    /// Time at which the execution ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    finished_at: Option<String>,
}

impl From<Execution> for ExecutionBody {
    fn from(execution: Execution) -> Self {
        let time = |time: leasehold::model::Timestamp| format!("{time:#}");
        Self {
            id: execution.id.to_string(),
            workflow: execution.workflow.to_string(),
            state: execution.state.as_str(),
            input: json(execution.input),
            reason: execution.reason,
            result: execution.result,
            progress: execution.progress,
            key: execution.key.map(|key| key.to_string()),
            attempt: execution.attempt,
            retry_of: execution.retry_of.map(|id| id.to_string()),
            max_runtime_seconds: execution.max_runtime.map(|limit| limit.as_duration().as_secs_f64()),
            started_by: execution.started_by,
            metadata: execution.metadata,
            token: execution.token.get(),
            version: execution.version,
            cancel_requested_by: execution.cancel_requested_by.map(|holder| holder.to_string()),
            created_at: time(execution.created_at),
            started_at: execution.started_at.map(time),
            lease_expires_at: execution.lease_expires_at.map(time),
            finished_at: execution.finished_at.map(time),
        }
    }
}

/// Returns an input as JSON, which needs no more memory than its text.
fn json(input: ExecutionInput) -> Payload {
    match input {
        ExecutionInput::Json(json) => json,
        // With blanks around it, JSON is stored as a text.
        ExecutionInput::Text(text) => Payload::new(&text)
            .unwrap_or_else(|_| Payload::trusted(serde_json::Value::from(&*text).to_string())),
    }
}

const MAX_PER_KEY: usize = 1000;
/// Name under which the server requests that a run stops which has exceeded its maximum run time.
const MAX_RUNTIME: &str = "max_runtime";

/// Query for executions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListExecutionsQuery {
    /// Only executions of this workflow.
    #[param(value_type = Option<WorkflowName>)]
    workflow: Option<String>,
    /// Only executions in this state. `queued` is an alias of `blocked`, and `status` is an alias
    /// of this parameter.
    #[param(value_type = Option<TaskState>)]
    #[serde(alias = "status")]
    state: Option<String>,
    /// Only executions with this idempotency key, including failed executions whose key was reused.
    /// All of them are on one page.
    #[param(value_type = Option<TaskKey>)]
    key: Option<String>,
    /// Only executions that the caller has leased, or leased last, with this `worker`.
    #[param(value_type = Option<WorkerId>)]
    worker: Option<String>,
    /// `nextCursor` of the previous page.
    #[param(value_type = Option<PageCursor>)]
    cursor: Option<String>,
    /// Maximum number of executions, 1 to 1000. Default: 100.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// Page of executions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ExecutionPage {
    /// Executions, newest first.
    executions: Vec<ExecutionBody>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Options of an abort.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AbortExecutionBody {
    /// Reason, shown with the execution.
    reason: Option<Reason>,
}

/// Result of an abort.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct AbortReply {
    /// Always true.
    success: bool,
    /// Id of the execution.
    execution_id: String,
    /// State: `aborted` if it was not running, otherwise `running` until its process has ended.
    state: &'static str,
}

/// Heartbeat of an execution.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExecutionHeartbeatBody {
    /// Fencing token from the lease response.
    token: Token,
    /// TTL in seconds, counted from now. Default: the TTL of the workflow.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// Progress, such as `{"done": 4, "of": 10, "note": "second pass"}`.
    progress: Option<ProgressBody>,
}

/// Response to a heartbeat.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ExecutionHeartbeatReply {
    /// Always true.
    success: bool,
    /// Whether an abort was requested, or the maximum run time is over. The client must stop the execution
    /// and report `aborted` with `complete`.
    stop_requested: bool,
    /// Name of the caller that requested the abort; `max_runtime` if the maximum run time is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_by: Option<String>,
}

/// Outcome of an execution.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CompleteExecutionBody {
    /// Fencing token from the lease response.
    token: Token,
    /// Final state; `status` is an alias of this field.
    #[serde(alias = "status")]
    state: ExecutionEndState,
    /// Result, if the execution succeeded.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
    /// Error message, if the execution failed or was aborted.
    error: Option<String>,
}

/// Final state of an execution.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ExecutionEndState {
    Succeeded,
    Failed,
    Aborted,
}

/// Parses a state. `queued` is an alias of `blocked`.
fn state(text: &str) -> ApiResult<TaskState> {
    if text == "queued" { Ok(TaskState::Blocked) } else { Ok(text.parse()?) }
}

/// Lists executions, newest first.
#[utoipa::path(
    get, path = "/api/v1/executions", tag = "workflows", operation_id = "listExecutions",
    params(ListExecutionsQuery),
    responses((status = OK, body = ExecutionPage)),
)]
async fn list(
    app: App,
    caller: Caller<Reader>,
    Query(query): Query<ListExecutionsQuery>,
) -> Reply<ExecutionPage> {
    let workflow = query.workflow.map(WorkflowName::new).transpose()?;
    caller.must_reach_queues(workflow.as_ref().map(WorkflowName::queue).as_ref())?;
    let state = query.state.as_deref().map(state).transpose()?;
    let worker = query.worker.map(|worker| worker.parse::<WorkerId>()).transpose()?;
    let worker = worker.map(|worker| caller.worker(worker));
    let limit = page_size(query.limit)?;
    if let Some(key) = query.key.map(TaskKey::new).transpose()? {
        let found = app.leasehold.workflows()?.with_key(workflow.as_ref(), &key, MAX_PER_KEY).await?;
        let matching = |execution: &Execution| {
            state.is_none_or(|state| execution.state == state)
                && worker.is_none_or(|worker| execution.worker == Some(worker))
        };
        let executions = found.into_iter().filter(matching).map(ExecutionBody::from).collect();
        return Ok(axum::Json(ExecutionPage { executions, next_cursor: None }));
    }
    let filter = ListExecutions::default()
        .workflow(workflow)
        .state(state)
        .worker(worker)
        .after(query.cursor.filter(|cursor| !cursor.is_empty()).map(Cursor))
        .limit(limit);
    let page = list_executions(&app.leasehold.workflows()?, filter).await?;
    let executions = page.items.into_iter().map(ExecutionBody::from).collect();
    Ok(axum::Json(ExecutionPage { executions, next_cursor: page.next.map(|next| next.0) }))
}

/// Returns an execution.
#[utoipa::path(
    get, path = "/api/v1/executions/{id}", tag = "workflows", operation_id = "getExecution",
    params(("id" = ExecutionId, Path, description = "Id of the execution")),
    responses(
        (status = OK, body = ExecutionBody),
        (status = NOT_FOUND, body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn get(app: App, caller: Caller<Reader>, Path(id): Path<String>) -> Reply<ExecutionBody> {
    let execution = app.leasehold.workflows()?.get(id.parse()?).await?;
    caller.must_reach_queue(&execution.workflow.queue())?;
    Ok(axum::Json(execution.into()))
}

/// Aborts an execution.
///
/// While it runs, the lock of the workflow stays held until the process has ended.
#[utoipa::path(
    post, path = "/api/v1/executions/{id}/abort", tag = "workflows", operation_id = "abortExecution",
    params(("id" = ExecutionId, Path, description = "Id of the execution")),
    request_body = Option<AbortExecutionBody>,
    responses(
        (status = ACCEPTED, body = AbortReply),
        (status = NOT_FOUND, body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "EXECUTION_FINISHED: the execution has already ended", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn abort(
    app: App,
    caller: Caller<Operator>,
    Path(id): Path<String>,
    MaybeJson(body): MaybeJson<AbortExecutionBody>,
) -> ApiResult<(StatusCode, axum::Json<AbortReply>)> {
    let (id, workflows) = (id.parse::<ExecutionId>()?, app.leasehold.workflows()?);
    if caller.is_scoped() {
        caller.must_reach_queue(&workflows.get(id).await?.workflow.queue())?;
    }
    let execution = workflows.abort(id, caller.holder()?, body.reason).await?;
    let (execution_id, state) = (execution.id.to_string(), execution.state.as_str());
    Ok((status::ACCEPTED, axum::Json(AbortReply { success: true, execution_id, state })))
}

/// Extends the lease of an execution that an external process runs.
///
/// After the maximum run time of the execution, the response requests a stop. If the client still sends
/// heartbeats `ttlSeconds` later, the server aborts the execution and releases the lock.
#[utoipa::path(
    post, path = "/api/v1/executions/{id}/heartbeat", tag = "workflows", operation_id = "heartbeatExecution",
    params(("id" = ExecutionId, Path, description = "Id of the execution")),
    request_body = ExecutionHeartbeatBody,
    responses(
        (status = OK, body = ExecutionHeartbeatReply),
        (status = NOT_FOUND, body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "STALE_TOKEN or EXECUTION_FINISHED: the client must stop the execution", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn heartbeat(
    app: App,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<ExecutionHeartbeatBody>,
) -> Reply<ExecutionHeartbeatReply> {
    let (id, workflows) = (id.parse::<ExecutionId>()?, app.leasehold.workflows()?);
    must_run(&app, &caller, id, body.token).await?;
    let execution = workflows.get(id).await?;
    let ttl = match body.ttl_seconds {
        Some(seconds) => lease_ttl(&app, seconds)?,
        None => app.workflow(&execution.workflow).map_or(Ttl::from_secs(30), |workflow| workflow.ttl),
    };
    let overdue = overdue(&app, &execution, body.token).await?;
    if let Some(overdue) = overdue.as_ref().filter(|_| execution.cancel_requested_by.is_none()) {
        // As with an abort, the lock stays held until the client reports that the process has ended.
        workflows.abort(id, Holder::new(MAX_RUNTIME)?, Some(Reason::new(overdue.reason())?)).await?;
    }
    let abort = workflows.heartbeat(id, body.token, ttl, body.progress.map(Into::into)).await?;
    if let (Some(overdue), Some(request)) = (overdue, &abort)
        && overdue.since.max(request.at).plus(ttl) <= overdue.now
    {
        let end = ExecutionEnd::Aborted(Some(overdue.reason()));
        let ended = workflows.complete(id, body.token, end).await?;
        app.task_owners.remove(std::iter::once((id.task(), body.token)));
        return Err(leasehold::Error::ExecutionFinished { execution: id, state: ended.state }.into());
    }
    let (stop_requested, requested_by) = (abort.is_some(), abort.map(|request| request.by.to_string()));
    Ok(axum::Json(ExecutionHeartbeatReply { success: true, stop_requested, requested_by }))
}

/// Rejects a caller that does not own the run of an execution, and a token that is not that of its last run.
async fn must_run(app: &App, caller: &Caller<Worker>, id: ExecutionId, token: Token) -> ApiResult<()> {
    let mut checked = token;
    must_own(app, caller, vec![(id.task(), &mut checked)]).await?;
    if checked == token {
        return Ok(());
    }
    let newest = app.leasehold.workflows()?.get(id).await?.token;
    Err(leasehold::Error::from(StaleToken::new(token, newest)).into())
}

/// Run that has exceeded its maximum run time.
struct Overdue {
    limit: Ttl,
    /// Time at which the run reached its limit.
    since: Timestamp,
    /// Time of the store.
    now: Timestamp,
}

impl Overdue {
    fn reason(&self) -> String {
        format!("timeout: it ran for {}", self.limit)
    }
}

/// Returns whether the run with this token has exceeded its maximum run time.
async fn overdue(app: &App, execution: &Execution, token: Token) -> ApiResult<Option<Overdue>> {
    let is_running = execution.state == TaskState::Running && execution.token == token;
    let (Some(limit), Some(start), true) = (execution.max_runtime, execution.started_at, is_running) else {
        return Ok(None);
    };
    let (since, now) = (start.plus(limit), app.leasehold.now().await?);
    Ok((since <= now).then_some(Overdue { limit, since, now }))
}

/// Reports the outcome of an execution that an external process ran.
#[utoipa::path(
    post, path = "/api/v1/executions/{id}/complete", tag = "workflows", operation_id = "completeExecution",
    params(("id" = ExecutionId, Path, description = "Id of the execution")),
    request_body = CompleteExecutionBody,
    responses(
        (status = OK, body = ExecutionBody),
        (status = NOT_FOUND, body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "STALE_TOKEN or EXECUTION_FINISHED: nothing was changed", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn complete(
    app: App,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<CompleteExecutionBody>,
) -> Reply<ExecutionBody> {
    let id: ExecutionId = id.parse()?;
    must_run(&app, &caller, id, body.token).await?;
    let end = match body.state {
        ExecutionEndState::Succeeded => ExecutionEnd::Succeeded(body.result),
        ExecutionEndState::Failed => ExecutionEnd::Failed(
            body.error.unwrap_or_else(|| "the execution failed without an error message".to_owned()),
        ),
        ExecutionEndState::Aborted => ExecutionEnd::Aborted(body.error),
    };
    let execution = app.leasehold.workflows()?.complete(id, body.token, end).await?;
    app.task_owners.remove(std::iter::once((id.task(), body.token)));
    Ok(axum::Json(execution.into()))
}
