//! Workflows over HTTP: listing, starting, their locks, and leasing executions for external processes.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use leasehold::OnLocked;
use leasehold::model::{
    AttemptResult, ExecutionInput, Payload, Reason, Settle, TaskState, Ttl, WorkerId, WorkflowName,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::executions::ExecutionBody;
use super::lease::{lease_ttl, wait_time};
use super::start_reply::{StartReply, start_problem};
use crate::access::{Admin, Caller, Reader, Worker};
use crate::body::{Json, MaybeJson};
use crate::problem::{ApiResult, Problem};
use crate::roles::routes;
use crate::schemas::{IdempotencyKey, TtlSeconds, WaitSeconds};
use crate::server::App;
use crate::status;
use crate::webhooks::key_header;
use crate::workflows::{Runner, Workflow};

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
#[derive(Serialize, ToSchema)]
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

/// Action if another execution holds the lock.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OnLockedAction {
    /// Rejects the start with 409.
    Reject,
    /// Responds with 202 and runs the execution after the earlier ones.
    Queue,
    /// Responds with 200 and starts nothing.
    Skip,
}

impl From<OnLocked> for OnLockedAction {
    fn from(on_locked: OnLocked) -> Self {
        match on_locked {
            OnLocked::Reject => Self::Reject,
            OnLocked::Queue(_) => Self::Queue,
            OnLocked::Skip => Self::Skip,
        }
    }
}

impl OnLockedAction {
    fn resolve(self, workflow: &Workflow) -> OnLocked {
        match self {
            Self::Reject => OnLocked::Reject,
            Self::Queue => OnLocked::Queue(workflow.queue_limit),
            Self::Skip => OnLocked::Skip,
        }
    }
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

impl From<leasehold::WorkflowLock> for WorkflowLockBody {
    fn from(lock: leasehold::WorkflowLock) -> Self {
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
async fn list(State(app): State<App>, _: Caller<Reader>) -> ApiResult<axum::Json<WorkflowList>> {
    let mut all: BTreeMap<WorkflowName, WorkflowBody> = BTreeMap::new();
    for workflow in app.workflows() {
        all.insert(workflow.name.clone(), WorkflowBody::of(workflow));
    }
    for status in app.leasehold().workflows()?.list().await? {
        let name = status.workflow;
        let body = all.entry(name.clone()).or_insert_with(|| WorkflowBody::unknown(&name));
        body.paused = status.paused.is_some();
        for state in TaskState::ALL {
            body.executions.insert(state.as_str(), status.counts.get(state));
        }
    }
    Ok(axum::Json(WorkflowList { workflows: all.into_values().collect() }))
}

impl WorkflowBody {
    fn of(workflow: &Workflow) -> Self {
        let runner = match workflow.runner {
            Runner::Command(_) => "command",
            Runner::External => "external",
        };
        Self {
            description: workflow.description.clone(),
            startable: true,
            runner: Some(runner),
            on_locked: Some(workflow.on_locked.into()),
            ..Self::unknown(&workflow.name)
        }
    }

    fn unknown(name: &WorkflowName) -> Self {
        Self {
            name: name.to_string(),
            description: None,
            startable: false,
            runner: None,
            on_locked: None,
            executions: BTreeMap::new(),
            paused: false,
        }
    }
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
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(name): Path<String>,
    headers: HeaderMap,
    MaybeJson(body): MaybeJson<StartBody>,
) -> ApiResult<Response> {
    app.refuse_when_draining()?;
    let workflow = app.workflow(&WorkflowName::new(name)?)?;
    let on_locked = body.on_locked.map_or(workflow.on_locked, |action| action.resolve(workflow));
    let mut start = app.leasehold().workflow(&workflow.name).on_locked(on_locked).reuse(workflow.reuse);
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
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(name): Path<String>,
    MaybeJson(body): MaybeJson<LeaseExecutionBody>,
) -> ApiResult<axum::Json<LeaseExecutionReply>> {
    app.refuse_when_draining()?;
    let workflow = app.workflow(&WorkflowName::new(name)?)?;
    if let Runner::Command(_) = workflow.runner {
        let problem = Problem::invalid(format!("the server runs workflow '{}' itself", workflow.name));
        return Err(problem.hint("set runner = \"external\" in leasehold.toml"));
    }
    let ttl = body.ttl_seconds.map_or(Ok(workflow.ttl), |seconds| lease_ttl(&app, seconds))?;
    let wait = body.wait_seconds.map_or(Ok(Duration::ZERO), |seconds| wait_time(&app, seconds))?;
    let worker = caller.identity().worker(WorkerId::from_uuid(Uuid::new_v4()));
    let waiting = wait_for_execution(&app, worker, &workflow.name, ttl, wait);
    let execution = app.unless_draining(waiting).await?;
    Ok(axum::Json(LeaseExecutionReply { success: true, execution: execution.map(ExecutionBody::from) }))
}

/// Leases an execution as soon as there is one.
async fn wait_for_execution(
    app: &App,
    worker: WorkerId,
    workflow: &WorkflowName,
    ttl: Ttl,
    wait: Duration,
) -> ApiResult<Option<leasehold::Execution>> {
    let store = app.leasehold().store();
    let deadline = leasehold::BootInstant::now().plus(wait);
    loop {
        // Subscribes before the query, so that no arrival is missed.
        let arrivals = store.tasks().map(|tasks| tasks.subscribe_queues(&[workflow.queue()]));
        let remaining = deadline.after(leasehold::BootInstant::now());
        if let Some(execution) = lease_execution(app, worker, workflow, ttl, remaining).await? {
            return Ok(Some(execution));
        }
        let remaining = deadline.after(leasehold::BootInstant::now());
        match arrivals {
            Some(mut arrivals) if !remaining.is_zero() => arrivals.next(Some(remaining)).await,
            _ => return Ok(None),
        }
    }
}

/// Leases an execution if there is one. If the client has disconnected by then, the execution is
/// returned to its queue.
async fn lease_execution(
    app: &App,
    worker: WorkerId,
    workflow: &WorkflowName,
    ttl: Ttl,
    wait: Duration,
) -> ApiResult<Option<leasehold::Execution>> {
    let (leasehold, workflow) = (app.leasehold().clone(), workflow.clone());
    let (to, from) = tokio::sync::oneshot::channel();
    // In a separate task, so that a client that disconnects does not interrupt the lease.
    tokio::spawn(async move {
        let leased = match leasehold.workflows() {
            Ok(workflows) => workflows.take_as(worker, &[workflow], ttl, wait).await,
            Err(error) => Err(error),
        };
        if let Err(Ok(Some(unclaimed))) = to.send(leased) {
            let settle =
                Settle { id: unclaimed.id.task(), token: unclaimed.token, verdict: AttemptResult::Return };
            if let Some(tasks) = leasehold.store().tasks()
                && let Err(error) = tasks.settle(&[settle]).await
            {
                tracing::warn!(%error, execution = %unclaimed.id, "failed to return an execution whose client has disconnected");
            }
        }
    });
    let aborted = |_| Problem::new("INTERNAL", "leasing an execution ended unexpectedly");
    Ok(from.await.map_err(aborted)??)
}

/// Returns the lock of a workflow.
#[utoipa::path(
    get, path = "/api/v1/workflows/{name}/lock", tag = "workflows", operation_id = "getWorkflowLock",
    params(("name" = WorkflowName, Path, description = "Name of the workflow; encode '/' as %2F")),
    responses((status = OK, body = WorkflowLockBody)),
)]
async fn lock(
    State(app): State<App>,
    _: Caller<Reader>,
    Path(name): Path<String>,
) -> ApiResult<axum::Json<WorkflowLockBody>> {
    let lock = app.leasehold().workflows()?.lock(&WorkflowName::new(name)?).await?;
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
    responses(
        (status = OK, body = WorkflowLockBody),
    ),
)]
async fn unlock(
    State(app): State<App>,
    caller: Caller<Admin>,
    Path(name): Path<String>,
    Json(body): Json<UnlockBody>,
) -> ApiResult<axum::Json<WorkflowLockBody>> {
    let workflow = WorkflowName::new(name)?;
    let lock = app.leasehold().workflows()?.unlock(&workflow, caller.holder()?, body.reason).await?;
    Ok(axum::Json(lock.into()))
}
