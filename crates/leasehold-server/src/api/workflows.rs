//! Workflows over HTTP: listing, starting, their locks, and leasing executions for external processes.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold::model::{ExecutionInput, Payload, Reason, TaskState, Ttl, WorkerId, WorkflowName};
use leasehold::{BootInstant, Error, Execution, StartResult, WorkflowLock};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::executions::ExecutionBody;
use super::lease::{lease_ttl, wait_time};
use crate::access::{Admin, Caller, Reader, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{IdempotencyKey, TtlSeconds, WaitSeconds};
use crate::problem::{ApiResult, Problem, Reply};
use crate::request::body::{Json, MaybeJson};
use crate::server::App;
use crate::status;
use crate::webhooks::key_header;
use crate::workflows::{OnLockedAction, Runner, Workflow};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(start))
        .routes(routes!(lease))
        .routes(routes!(lock, unlock))
}

/// List of workflows.
#[derive(Serialize, ToSchema)]
struct WorkflowList {
    /// Workflows, sorted by name.
    workflows: Vec<WorkflowBody>,
}

/// Workflow.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowBody {
    /// Name of the workflow.
    name: String,
    /// Description of the workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Whether this server can start the workflow. If not, the workflow is only known from the store.
    startable: bool,
    /// Runner of the executions: `command` or `external`.
    #[serde(skip_serializing_if = "Option::is_none")]
    runner: Option<&'static str>,
    /// Action if another execution holds the lock: `reject`, `queue` or `skip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_locked: Option<OnLockedAction>,
    /// Number of executions by state.
    executions: BTreeMap<&'static str, u64>,
    /// Whether the workflow is paused: no execution is started.
    paused: bool,
}

/// Options of a start.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartBody {
    /// Input of the execution, passed on its stdin. Default: `null`.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Payload>,
    /// Action if another execution holds the lock. Default: the setting of the workflow.
    on_locked: Option<OnLockedAction>,
}

/// Options of a lease request.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaseExecutionBody {
    /// Time in seconds after which the lease expires without a heartbeat. Default: the TTL of the
    /// workflow.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// Maximum time in seconds to wait for an execution. Default: 0.
    #[schema(value_type = Option<WaitSeconds>)]
    wait_seconds: Option<f64>,
    /// Id of the caller's process: a UUID, new for each start. After a lost response the caller finds its
    /// execution with `GET /api/v1/executions?worker=…`. Default: an id that the server generates.
    worker: Option<Uuid>,
}

/// Leased execution.
#[derive(Serialize, ToSchema)]
struct LeaseExecutionReply {
    /// Always true.
    success: bool,
    /// Execution, or `null` if the wait timed out. Its token is required for heartbeats and for
    /// `complete`.
    execution: Option<ExecutionBody>,
}

/// Lock of a workflow.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowLockBody {
    /// Name of the workflow.
    workflow: String,
    /// Whether a start would find the workflow locked.
    is_locked: bool,
    /// Id of the execution that runs or runs next.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    /// Time at which the lock was acquired.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    locked_since: Option<String>,
    /// Time at which the lock expires unless it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Whether the execution that holds the lock is not running, so that the next start takes over
    /// the lock.
    is_stale: bool,
    /// Newest fencing token of the lock.
    token: u64,
    /// Number of executions that wait for earlier ones.
    queued: u64,
}

/// Options of a forced unlock.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct UnlockBody {
    /// Reason, recorded in the history.
    reason: Reason,
}

impl From<WorkflowLock> for WorkflowLockBody {
    fn from(lock: WorkflowLock) -> Self {
        Self {
            workflow: lock.workflow.to_string(),
            is_locked: lock.is_locked,
            execution_id: lock.execution_id.map(|id| id.to_string()),
            locked_since: lock.locked_since.map(|time| format!("{time:#}")),
            expires_at: lock.expires_at.map(|time| format!("{time:#}")),
            is_stale: lock.is_stale,
            token: lock.token.get(),
            queued: lock.queued,
        }
    }
}

/// Lists the workflows that this server can start and those that are known from the store.
#[utoipa::path(
    get, path = "/api/v1/workflows", tag = "workflows", operation_id = "listWorkflows",
    responses((status = OK, body = WorkflowList)),
)]
async fn list(app: App, _: Caller<Reader>) -> Reply<WorkflowList> {
    let configured = |workflow: &Workflow| WorkflowBody {
        name: workflow.name.to_string(),
        description: workflow.description.clone(),
        startable: true,
        runner: Some(if let Runner::External = workflow.runner { "external" } else { "command" }),
        on_locked: Some(workflow.on_locked.into()),
        ..WorkflowBody::default()
    };
    let all = app.options.workflows.iter().map(|workflow| (workflow.name.clone(), configured(workflow)));
    let mut all: BTreeMap<WorkflowName, WorkflowBody> = all.collect();
    for status in app.leasehold.workflows()?.list().await? {
        let name = status.workflow.to_string();
        let unknown = || WorkflowBody { name, ..WorkflowBody::default() };
        let body = all.entry(status.workflow).or_insert_with(unknown);
        body.paused = status.paused.is_some();
        for state in TaskState::ALL {
            body.executions.insert(state.as_str(), status.counts.get(state));
        }
    }
    Ok(axum::Json(WorkflowList { workflows: all.into_values().collect() }))
}

/// Starts a workflow.
///
/// With an `Idempotency-Key` the workflow is started once, even if the request is repeated.
#[utoipa::path(
    post, path = "/api/v1/workflows/{name}/executions", tag = "workflows", operation_id = "startWorkflow",
    params(
        ("name" = WorkflowName, Path, description = "Name of the workflow; encode '/' as %2F"),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "Idempotency key of the start"),
    ),
    request_body = Option<StartBody>,
    responses(
        (status = CREATED, description = "The execution runs or runs next", body = StartReply, headers(("Location" = String, description = "Path of the execution"))),
        (status = OK, description = "The execution was started earlier, or the start was skipped", body = StartReply),
        (status = ACCEPTED, description = "The execution waits for earlier executions", body = StartReply),
        (status = NOT_FOUND, description = "UNKNOWN_WORKFLOW: the workflow does not exist", body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "WORKFLOW_LOCKED: another execution holds the lock; the key was not consumed", body = Problem, content_type = "application/problem+json"),
        (status = UNPROCESSABLE_ENTITY, description = "IDEMPOTENCY_KEY_REUSED: the key belongs to a start with another input", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn start(
    app: App,
    caller: Caller<Worker>,
    Path(name): Path<String>,
    headers: HeaderMap,
    MaybeJson(body): MaybeJson<StartBody>,
) -> ApiResult<Response> {
    app.refuse_when_draining()?;
    let workflow = app.workflow(&WorkflowName::new(name)?)?;
    let on_locked = body.on_locked.map_or(workflow.on_locked, |action| action.resolve(workflow.queue_limit));
    let mut start = app.leasehold.workflow(&workflow.name).on_locked(on_locked).reuse(workflow.reuse);
    start = start.started_by(&caller.holder()?);
    if let Some(limit) = workflow.max_runtime {
        start = start.max_runtime(limit.as_duration());
    }
    if let Some(key) = key_header(&headers)? {
        start = start.key(key.as_str());
    }
    let input = match body.input {
        Some(input) => ExecutionInput::Json(input),
        None => ExecutionInput::of(&())?,
    };
    match start.start_with(input).await {
        Ok(start) => Ok(StartReply::response(&workflow.name, &start, status::CREATED)),
        Err(error) => Err(start_problem(&app, error).await),
    }
}

/// Leases the next execution of a workflow for an external process.
#[utoipa::path(
    post, path = "/api/v1/workflows/{name}/lease", tag = "workflows", operation_id = "leaseExecution",
    params(("name" = WorkflowName, Path, description = "Name of the workflow; encode '/' as %2F")),
    request_body = Option<LeaseExecutionBody>,
    responses(
        (status = OK, body = LeaseExecutionReply),
        (status = BAD_REQUEST, description = "INVALID: the server runs this workflow itself, or a value is not allowed", body = Problem, content_type = "application/problem+json"),
        (status = NOT_FOUND, description = "UNKNOWN_WORKFLOW: the workflow does not exist", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn lease(
    app: App,
    caller: Caller<Worker>,
    Path(name): Path<String>,
    MaybeJson(body): MaybeJson<LeaseExecutionBody>,
) -> Reply<LeaseExecutionReply> {
    app.refuse_when_draining()?;
    let workflow = app.workflow(&WorkflowName::new(name)?)?;
    if let Runner::Command(_) = workflow.runner {
        let problem = Problem::invalid(format!("the server runs workflow '{}' itself", workflow.name));
        return Err(problem.hint("set runner = \"external\" in leasehold.toml"));
    }
    let ttl = body.ttl_seconds.map_or(Ok(workflow.ttl), |seconds| lease_ttl(&app, seconds))?;
    let wait = body.wait_seconds.map_or(Ok(Duration::ZERO), |seconds| wait_time(&app, seconds))?;
    let worker = caller.worker(WorkerId::from_uuid(body.worker.unwrap_or_else(Uuid::new_v4)));
    let execution = wait_for_execution(&app, worker, &workflow.name, ttl, wait).await?;
    Ok(axum::Json(LeaseExecutionReply { success: true, execution: execution.map(ExecutionBody::from) }))
}

/// Time of the grace of a stop that is left for the return of an execution after the wait for its lock.
const RETURN_TIME: Duration = Duration::from_secs(2);

/// Leases the next execution. If the client disconnects, an execution that was leased returns to its queue.
///
/// A stop of the server does not interrupt the wait for the lock of an execution that is leased: the process
/// would end before the execution has returned to its queue. That wait is shorter than the grace of the stop.
async fn wait_for_execution(
    app: &App,
    worker: WorkerId,
    workflow: &WorkflowName,
    ttl: Ttl,
    wait: Duration,
) -> ApiResult<Option<Execution>> {
    let (store, workflows) = (app.leasehold.store(), app.leasehold.workflows()?);
    let deadline = BootInstant::now().plus(wait);
    let grace = app.options.limits.grace;
    let longest = grace.saturating_sub(RETURN_TIME).max(grace / 2);
    loop {
        app.refuse_when_draining()?;
        // Subscribes before the query, so that no arrival is missed.
        let arrivals = store.tasks().map(|tasks| tasks.subscribe_queues(&[workflow.queue()]));
        let remaining = deadline.after(BootInstant::now()).min(longest);
        let taken = workflows.take_as(worker, std::slice::from_ref(workflow), ttl, remaining).await?;
        if taken.is_some() {
            return Ok(taken);
        }
        let remaining = deadline.after(BootInstant::now());
        match arrivals {
            Some(mut arrivals) if !remaining.is_zero() => {
                app.unless_draining(arrivals.next(Some(remaining))).await?;
            }
            _ => return Ok(None),
        }
    }
}

/// Returns the lock of a workflow.
#[utoipa::path(
    get, path = "/api/v1/workflows/{name}/lock", tag = "workflows", operation_id = "getWorkflowLock",
    params(("name" = WorkflowName, Path, description = "Name of the workflow; encode '/' as %2F")),
    responses((status = OK, body = WorkflowLockBody)),
)]
async fn lock(app: App, _: Caller<Reader>, Path(name): Path<String>) -> Reply<WorkflowLockBody> {
    let lock = app.leasehold.workflows()?.lock(&WorkflowName::new(name)?).await?;
    Ok(axum::Json(lock.into()))
}

/// Releases the lock of a workflow by force.
///
/// The execution ends as `aborted`. Its process may still be running, and its fencing token is
/// stale from then on.
#[utoipa::path(
    delete, path = "/api/v1/workflows/{name}/lock", tag = "workflows", operation_id = "unlockWorkflow",
    params(("name" = WorkflowName, Path, description = "Name of the workflow; encode '/' as %2F")),
    request_body = UnlockBody,
    responses((status = OK, body = WorkflowLockBody)),
)]
async fn unlock(
    app: App,
    caller: Caller<Admin>,
    Path(name): Path<String>,
    Json(body): Json<UnlockBody>,
) -> Reply<WorkflowLockBody> {
    let workflow = WorkflowName::new(name)?;
    let lock = app.leasehold.workflows()?.unlock(&workflow, caller.holder()?, body.reason).await?;
    Ok(axum::Json(lock.into()))
}

/// Result of a start.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StartReply {
    /// Always true.
    success: bool,
    /// Name of the workflow.
    workflow: String,
    /// Whether this request created an execution, which runs or waits for earlier executions.
    #[serde(rename = "started")]
    is_new: bool,
    /// Id of the execution: the new one, or the earlier one with the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    /// Whether an earlier request with the same key started the execution.
    duplicate: bool,
    /// State of the execution: `blocked` while it waits for earlier executions, `pending`,
    /// `running`, `succeeded`, `failed` or `aborted`. Without an execution: `skipped`, or
    /// `filtered` for an event that the filter of the trigger rejects.
    #[schema(example = "pending")]
    state: &'static str,
    /// Number of the attempt for this key, starting at 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// Id of the failed execution whose key this one reuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_of: Option<String>,
    /// Id of the execution that holds the lock, if nothing was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    existing_execution_id: Option<String>,
    /// Reason why the start was skipped or filtered.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl StartReply {
    fn new(workflow: &WorkflowName, start: &StartResult) -> Self {
        let execution = start.execution();
        let (blocking, reason) = match start {
            StartResult::Skipped { execution, reason } => {
                (execution.map(|id| id.to_string()), Some(reason.clone()))
            }
            _ => (None, None),
        };
        Self {
            success: true,
            workflow: workflow.to_string(),
            is_new: matches!(start, StartResult::Started(_) | StartResult::Queued(_)),
            execution_id: execution.map(|execution| execution.id.to_string()),
            duplicate: matches!(start, StartResult::Duplicate(_)),
            state: execution.map_or("skipped", |execution| execution.state.as_str()),
            attempt: execution.map(|execution| execution.attempt),
            retry_of: execution.and_then(|execution| execution.retry_of).map(|id| id.to_string()),
            existing_execution_id: blocking,
            reason,
        }
    }

    pub(crate) fn filtered(workflow: &WorkflowName, reason: String) -> Response {
        let (workflow, reason) = (workflow.to_string(), Some(reason));
        let filtered = Self { success: true, workflow, state: "filtered", reason, ..Self::default() };
        axum::Json(filtered).into_response()
    }

    /// Returns the response; `created` is the status for a new execution.
    pub(crate) fn response(workflow: &WorkflowName, start: &StartResult, created: StatusCode) -> Response {
        let status = match start {
            StartResult::Started(_) => created,
            StartResult::Queued(_) => status::ACCEPTED,
            StartResult::Duplicate(_) | StartResult::Skipped { .. } => StatusCode::OK,
        };
        let started = Self::new(workflow, start);
        let location = started.execution_id.as_ref().map(|id| format!("/api/v1/executions/{id}"));
        let mut response = (status, axum::Json(started)).into_response();
        if let Some(location) = location.and_then(|path| HeaderValue::from_str(&path).ok()) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        response
    }
}

/// Converts the error of a start. For a locked workflow, `Retry-After` is the remaining time of the
/// lock.
pub(crate) async fn start_problem(app: &App, error: Error) -> Problem {
    let Error::WorkflowLocked { workflow, .. } = &error else { return error.into() };
    let lock = app.leasehold.locks().status(&workflow.lock()).await.map_err(Problem::from).ok();
    let remaining = lock.and_then(|lock| Some(lock.expires_at?.since(lock.now)));
    Problem::from(error).retry_after(remaining.unwrap_or(Duration::from_secs(1)))
}
