//! Executions over HTTP: looking at them, stopping them, and running them elsewhere.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use leasehold::model::{
    ExecutionId, Metadata, Payload, Progress, Reason, TaskKey, TaskState, Token, Ttl, WorkflowName,
};
use leasehold::store::Cursor;
use leasehold::{Execution, ExecutionEnd, ListExecutions};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::lease::lease_ttl;
use super::locks::page_size;
use super::tasks::ProgressBody;
use super::tasks::must_own;
use crate::access::{Caller, Operator, Reader, Worker};
use crate::body::{Json, MaybeJson, Query};
use crate::described::{PageCursor, PageSize, TtlSeconds};
use crate::problem::{Answer, Problem};
use crate::roles::routes;
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

/// One run of a workflow.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecutionBody {
    /// Its id.
    #[schema(example = "exec_01890a5d-ac96-774b-bcce-b302099a8057")]
    id: String,
    /// Of which workflow.
    workflow: String,
    /// Where it stands: blocked if it waits for its turn, pending, running, succeeded, failed or aborted.
    #[schema(example = "running")]
    state: &'static str,
    /// How it came to that, if it has failed or was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What it was started with.
    #[schema(value_type = serde_json::Value)]
    input: serde_json::Value,
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
    /// How far it has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    progress: Option<Progress>,
    /// What makes it the same start when it comes again.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Which try of its key it is, from 1.
    attempt: u32,
    /// The failed execution whose key it has taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_of: Option<String>,
    /// How long it may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_runtime_seconds: Option<f64>,
    /// Who started it: the name of the API token, the trigger or the schedule; without tokens what the caller says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "ci")]
    started_by: Option<String>,
    /// Other facts about its start.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    facts: Metadata,
    /// The fencing token of its run; zero until it is run.
    token: u64,
    /// Counts its changes.
    version: u64,
    /// Who wants it stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_by: Option<String>,
    /// When it was started.
    #[schema(format = DateTime)]
    created_at: String,
    /// Since when it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    started_at: Option<String>,
    /// Until when whoever runs it has it, without a sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    lease_expires_at: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    finished_at: Option<String>,
}

impl From<Execution> for ExecutionBody {
    fn from(execution: Execution) -> Self {
        let time = |time: leasehold::model::Timestamp| format!("{time:#}");
        let text = || String::from_utf8_lossy(execution.input.bytes()).into_owned();
        Self {
            id: execution.id.to_string(),
            workflow: execution.workflow.to_string(),
            state: execution.state.word(),
            input: execution.input.read().unwrap_or_else(|_| serde_json::Value::String(text())),
            reason: execution.reason,
            result: execution.result,
            progress: execution.progress,
            key: execution.key.map(|key| key.to_string()),
            attempt: execution.attempt,
            retry_of: execution.retry_of.map(|id| id.to_string()),
            max_runtime_seconds: execution.max_runtime.map(|longest| longest.as_duration().as_secs_f64()),
            started_by: execution.started_by,
            facts: execution.facts,
            token: execution.token.get(),
            version: execution.version,
            asked_by: execution.asked_by.map(|holder| holder.to_string()),
            created_at: time(execution.created_at),
            started_at: execution.started_at.map(time),
            lease_expires_at: execution.lease_expires_at.map(time),
            finished_at: execution.finished_at.map(time),
        }
    }
}

/// No more executions of one key and workflow are listed.
const MOST_OF_A_KEY: usize = 1000;

/// Which executions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Of this workflow.
    #[param(value_type = Option<WorkflowName>)]
    workflow: Option<String>,
    /// In this state. `blocked` is also called `queued`, and the parameter also `status`.
    #[param(value_type = Option<TaskState>)]
    #[serde(alias = "status")]
    state: Option<String>,
    /// Started with this key, also failed ones whose key a later one has used again: all of them, on one page.
    #[param(value_type = Option<TaskKey>)]
    key: Option<String>,
    /// After this place of an earlier page.
    #[param(value_type = Option<PageCursor>)]
    cursor: Option<String>,
    /// At most so many; 100 if not said, 1000 at most.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// A page of executions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ExecutionPage {
    /// The newest first.
    executions: Vec<ExecutionBody>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Why an execution is to stop.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AbortExecutionBody {
    /// Shown with it.
    reason: Option<Reason>,
}

/// An execution that is to stop.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Aborting {
    /// Always true.
    success: bool,
    /// The execution.
    execution_id: String,
    /// Where it stands: aborted if it was not begun, running until its process is dead.
    state: &'static str,
}

/// A sign of life.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HeartbeatBody {
    /// As lease gave it.
    token: Token,
    /// How long the lease lasts from now; as the workflow has it if not said.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// How far it has come: `{"done": 4, "of": 10, "note": "second pass"}`.
    progress: Option<ProgressBody>,
}

/// An answer to a sign of life.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Heard {
    /// Always true.
    success: bool,
    /// Whether somebody wants it stopped: end it, and say so with complete.
    stop_requested: bool,
    /// Who.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_by: Option<String>,
}

/// How an execution ended.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CompleteExecutionBody {
    /// As lease gave it.
    token: Token,
    /// How.
    #[serde(alias = "status")]
    state: EndWord,
    /// What came of it, if it succeeded.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
    /// Why, if it did not.
    error: Option<String>,
}

/// How an execution may end.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EndWord {
    Succeeded,
    Failed,
    Aborted,
}

fn id(text: &str) -> Answer<ExecutionId> {
    Ok(text.parse::<ExecutionId>()?)
}

/// One that waits for its turn is blocked, as any task; `queued` is understood, too.
fn state(text: &str) -> Answer<TaskState> {
    if text == "queued" { Ok(TaskState::Blocked) } else { Ok(text.parse()?) }
}

/// Executions, the newest first.
#[utoipa::path(
    get, path = "/api/v1/executions", tag = "workflows", operation_id = "listExecutions",
    params(Which),
    responses(
        (status = OK, body = ExecutionPage),
    ),
)]
async fn list(
    State(app): State<App>,
    _: Caller<Reader>,
    Query(which): Query<Which>,
) -> Answer<axum::Json<ExecutionPage>> {
    let (workflow, state) =
        (which.workflow.map(WorkflowName::new).transpose()?, which.state.as_deref().map(state).transpose()?);
    let limit = page_size(which.limit)?;
    if let Some(key) = which.key.map(TaskKey::new).transpose()? {
        let found = app.leasehold().workflows()?.with_key(workflow.as_ref(), &key, MOST_OF_A_KEY).await?;
        let wanted = found.into_iter().filter(|execution| state.is_none_or(|state| execution.state == state));
        let executions = wanted.map(ExecutionBody::from).collect();
        return Ok(axum::Json(ExecutionPage { executions, next_cursor: None }));
    }
    let ask = ListExecutions {
        workflow,
        state,
        after: which.cursor.filter(|cursor| !cursor.is_empty()).map(Cursor),
        limit,
    };
    let page = app.leasehold().workflows()?.executions(&ask).await?;
    Ok(axum::Json(ExecutionPage {
        executions: page.items.into_iter().map(ExecutionBody::from).collect(),
        next_cursor: page.next.map(|next| next.0),
    }))
}

/// One execution.
#[utoipa::path(
    get, path = "/api/v1/executions/{id}", tag = "workflows", operation_id = "getExecution",
    params(("id" = ExecutionId, Path, description = "The execution")),
    responses(
        (status = OK, body = ExecutionBody),
        (status = NOT_FOUND, body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn get(
    State(app): State<App>,
    caller: Caller<Reader>,
    Path(text): Path<String>,
) -> Answer<axum::Json<ExecutionBody>> {
    let execution = app.leasehold().workflows()?.get(id(&text)?).await?;
    caller.who().must_reach_queue(&execution.workflow.queue())?;
    Ok(axum::Json(execution.into()))
}

/// Stop an execution. If it runs, its lock is held until its process is really dead.
#[utoipa::path(
    post, path = "/api/v1/executions/{id}/abort", tag = "workflows", operation_id = "abortExecution",
    params(("id" = ExecutionId, Path, description = "The execution")),
    request_body = Option<AbortExecutionBody>,
    responses(
        (status = ACCEPTED, body = Aborting),
        (status = NOT_FOUND, body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "It is over already", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn abort(
    State(app): State<App>,
    caller: Caller<Operator>,
    Path(text): Path<String>,
    MaybeJson(body): MaybeJson<AbortExecutionBody>,
) -> Answer<(StatusCode, axum::Json<Aborting>)> {
    let (id, workflows) = (id(&text)?, app.leasehold().workflows()?);
    if caller.who().is_scoped() {
        caller.who().must_reach_queue(&workflows.get(id).await?.workflow.queue())?;
    }
    let execution = workflows.abort(id, caller.holder()?, body.reason).await?;
    let (execution_id, state) = (execution.id.to_string(), execution.state.word());
    Ok((status::ACCEPTED, axum::Json(Aborting { success: true, execution_id, state })))
}

/// A sign of life of an execution that is run elsewhere.
#[utoipa::path(
    post, path = "/api/v1/executions/{id}/heartbeat", tag = "workflows", operation_id = "heartbeatExecution",
    params(("id" = ExecutionId, Path, description = "The execution")),
    request_body = HeartbeatBody,
    responses(
        (status = OK, body = Heard),
        (status = NOT_FOUND, body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "The token is old, or the execution is over: stop", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn heartbeat(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(text): Path<String>,
    Json(body): Json<HeartbeatBody>,
) -> Answer<axum::Json<Heard>> {
    let (id, workflows) = (id(&text)?, app.leasehold().workflows()?);
    must_own(&app, &caller, [(id.task(), body.token)]).await?;
    let execution = workflows.get(id).await?;
    let ttl = match body.ttl_seconds {
        Some(seconds) => lease_ttl(&app, seconds)?,
        None => app.workflow(&execution.workflow).map_or(Ttl::from_secs(30), |workflow| workflow.ttl),
    };
    if is_overdue(&app, &execution).await? {
        let longest =
            execution.max_runtime.map_or_else(String::new, |longest| format!(": it ran for {longest}"));
        let end = ExecutionEnd::Aborted(Some(format!("timeout{longest}")));
        let ended = workflows.complete(id, body.token, end).await?;
        return Err(leasehold::Error::ExecutionFinished { execution: id, state: ended.state }.into());
    }
    let asked = workflows.heartbeat(id, body.token, ttl, body.progress.map(Into::into)).await?;
    let (stop_requested, requested_by) = (asked.is_some(), asked.map(|asked| asked.by.to_string()));
    Ok(axum::Json(Heard { success: true, stop_requested, requested_by }))
}

/// Whether it has run for longer than it may.
async fn is_overdue(app: &App, execution: &Execution) -> Answer<bool> {
    let running = execution.state == TaskState::Running;
    let (Some(longest), Some(since), true) = (execution.max_runtime, execution.started_at, running) else {
        return Ok(false);
    };
    Ok(since.plus(longest) <= app.leasehold().now().await?)
}

/// The end of an execution that is run elsewhere.
#[utoipa::path(
    post, path = "/api/v1/executions/{id}/complete", tag = "workflows", operation_id = "completeExecution",
    params(("id" = ExecutionId, Path, description = "The execution")),
    request_body = CompleteExecutionBody,
    responses(
        (status = OK, body = ExecutionBody),
        (status = NOT_FOUND, body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "The token is old, or the execution is over: nothing was changed", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn complete(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(text): Path<String>,
    Json(body): Json<CompleteExecutionBody>,
) -> Answer<axum::Json<ExecutionBody>> {
    let id = id(&text)?;
    must_own(&app, &caller, [(id.task(), body.token)]).await?;
    let end = match body.state {
        EndWord::Succeeded => ExecutionEnd::Succeeded(body.result),
        EndWord::Failed => ExecutionEnd::Failed(body.error.unwrap_or_else(|| "it failed".to_owned())),
        EndWord::Aborted => ExecutionEnd::Aborted(body.error),
    };
    let execution = app.leasehold().workflows()?.complete(id, body.token, end).await?;
    Ok(axum::Json(execution.into()))
}
