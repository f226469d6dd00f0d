//! Workflows over HTTP: what there is, starting them, their locks, and taking executions to run them elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use leasehold::OnLocked;
use leasehold::model::{
    AttemptResult, Input, Payload, Reason, Settle, TaskState, Ttl, WorkerId, WorkflowName,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::executions::ExecutionBody;
use super::lease::{lease_ttl, wait_time};
use super::started::{self, Started};
use crate::access::{Admin, Caller, Reader, Worker};
use crate::body::{Json, MaybeJson};
use crate::described::{IdempotencyKey, TtlSeconds, WaitSeconds};
use crate::problem::{Answer, Problem};
use crate::roles::routes;
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

/// The workflows.
#[derive(Serialize, ToSchema)]
struct WorkflowList {
    /// By name.
    workflows: Vec<WorkflowBody>,
}

/// A workflow.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowBody {
    /// Its name.
    name: String,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Whether it can be started here, or is only known from the store.
    startable: bool,
    /// Who runs it: command or external.
    #[serde(skip_serializing_if = "Option::is_none")]
    runner: Option<&'static str>,
    /// What is done if another execution is in the way: reject, queue or skip.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_locked: Option<OnLockedWord>,
    /// How many executions stand where.
    executions: BTreeMap<&'static str, u64>,
    /// Whether none is begun for now.
    paused: bool,
}

/// What to do if another execution is in the way.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OnLockedWord {
    /// 409
    Reject,
    /// 202, and it runs when those before it have
    Queue,
    /// 200, and nothing is started
    Skip,
}

impl From<OnLocked> for OnLockedWord {
    fn from(on_locked: OnLocked) -> Self {
        match on_locked {
            OnLocked::Reject => Self::Reject,
            OnLocked::Queue(_) => Self::Queue,
            OnLocked::Skip => Self::Skip,
        }
    }
}

impl OnLockedWord {
    fn of(self, workflow: &Workflow) -> OnLocked {
        match self {
            Self::Reject => OnLocked::Reject,
            Self::Queue => OnLocked::Queue(workflow.places),
            Self::Skip => OnLocked::Skip,
        }
    }
}

/// A start.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartBody {
    /// What the execution is about: it gets this on its stdin. Null if not said.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Payload>,
    /// What to do if another execution is in the way; as the workflow has it if not said.
    on_locked: Option<OnLockedWord>,
}

/// An asking for an execution.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaseExecutionBody {
    /// How long the lease lasts without a heartbeat; as the workflow has it if not said.
    #[schema(value_type = Option<TtlSeconds>)]
    ttl_seconds: Option<f64>,
    /// How long to wait for an execution; 0 if not said.
    #[schema(value_type = Option<WaitSeconds>)]
    wait_seconds: Option<f64>,
}

/// What was taken.
#[derive(Serialize, ToSchema)]
struct Leased {
    /// Always true.
    success: bool,
    /// The execution; null if there was none in time. Its token goes with every call about it.
    execution: Option<ExecutionBody>,
}

/// The lock of a workflow.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct LockBody {
    /// The workflow.
    workflow: String,
    /// Whether a start would find it taken.
    is_locked: bool,
    /// The execution that runs, or is next to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    locked_since: Option<String>,
    /// Until when, unless renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Whether whoever has it is not at work: the next start takes it away.
    is_stale: bool,
    /// The newest token of the lock.
    token: u64,
    /// How many executions wait for their turn.
    queued: u64,
}

/// Why a lock is taken away.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct UnlockBody {
    /// Kept in the history.
    reason: Reason,
}

impl From<leasehold::WorkflowLock> for LockBody {
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

/// The workflows: those that can be started here, and those that the store knows of.
#[utoipa::path(
    get, path = "/api/v1/workflows", tag = "workflows", operation_id = "listWorkflows",
    responses((status = OK, body = WorkflowList)),
)]
async fn list(State(app): State<App>, _: Caller<Reader>) -> Answer<axum::Json<WorkflowList>> {
    let mut all: BTreeMap<WorkflowName, WorkflowBody> = BTreeMap::new();
    for workflow in app.workflows() {
        all.insert(workflow.name.clone(), WorkflowBody::of(workflow));
    }
    for status in app.leasehold().workflows()?.list().await? {
        let name = status.workflow;
        let body = all.entry(name.clone()).or_insert_with(|| WorkflowBody::unknown(&name));
        body.paused = status.paused.is_some();
        for state in TaskState::ALL {
            body.executions.insert(state.word(), status.counts.get(state));
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

/// Start a workflow. With an `Idempotency-Key` it is started once, however often it is asked for.
#[utoipa::path(
    post, path = "/api/v1/workflows/{name}/executions", tag = "workflows", operation_id = "startWorkflow",
    params(
        ("name" = WorkflowName, Path, description = "The workflow; a '/' is written %2F"),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "What makes it the same start when it comes again"),
    ),
    request_body = Option<StartBody>,
    responses(
        (status = CREATED, description = "It runs, or is next to run", body = Started, headers(("Location" = String, description = "The execution"))),
        (status = OK, description = "It was started before, or is skipped", body = Started),
        (status = ACCEPTED, description = "It waits for its turn", body = Started),
        (status = NOT_FOUND, description = "There is no such workflow", body = Problem, content_type = "application/problem+json"),
        (status = CONFLICT, description = "Another execution is in the way: the key is as free as before", body = Problem, content_type = "application/problem+json"),
        (status = UNPROCESSABLE_ENTITY, description = "The key has started something with another input", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn start(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(name): Path<String>,
    headers: HeaderMap,
    MaybeJson(body): MaybeJson<StartBody>,
) -> Answer<Response> {
    app.refuse_when_draining()?;
    let workflow = app.workflow(&WorkflowName::new(name)?)?;
    let on_locked = body.on_locked.map_or(workflow.on_locked, |word| word.of(workflow));
    let mut start = app.leasehold().workflow(&workflow.name).on_locked(on_locked).reuse(workflow.reuse);
    start = start.started_by(&caller.holder()?);
    if let Some(longest) = workflow.max_runtime {
        start = start.max_runtime(longest.as_duration());
    }
    if let Some(key) = key_header(&headers)? {
        start = start.key(key.as_str());
    }
    let input = match body.input {
        Some(input) => Input::Json(input),
        None => Input::of(&())?,
    };
    match start.start_with(input).await {
        Ok(start) => Ok(Started::answer(&workflow.name, &start, status::CREATED)),
        Err(error) => Err(started::refused(&app, error).await),
    }
}

/// Take the next execution of a workflow, to run it elsewhere.
#[utoipa::path(
    post, path = "/api/v1/workflows/{name}/lease", tag = "workflows", operation_id = "leaseExecution",
    params(("name" = WorkflowName, Path, description = "The workflow; a '/' is written %2F")),
    request_body = Option<LeaseExecutionBody>,
    responses(
        (status = OK, body = Leased),
        (status = BAD_REQUEST, description = "The server runs this workflow itself, or a value cannot be", body = Problem, content_type = "application/problem+json"),
        (status = NOT_FOUND, description = "There is no such workflow", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn lease(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(name): Path<String>,
    MaybeJson(body): MaybeJson<LeaseExecutionBody>,
) -> Answer<axum::Json<Leased>> {
    app.refuse_when_draining()?;
    let workflow = app.workflow(&WorkflowName::new(name)?)?;
    if let Runner::Command(_) = workflow.runner {
        let problem = Problem::invalid(format!("workflow '{}' is run by the server itself", workflow.name));
        return Err(problem.hint("write runner = \"external\" in leasehold.toml"));
    }
    let ttl = body.ttl_seconds.map_or(Ok(workflow.ttl), |seconds| lease_ttl(&app, seconds))?;
    let wait = body.wait_seconds.map_or(Ok(Duration::ZERO), |seconds| wait_time(&app, seconds))?;
    let worker = caller.who().worker(WorkerId::from_uuid(Uuid::new_v4()));
    let waiting = take(&app, worker, &workflow.name, ttl, wait);
    let execution = app.unless_draining(waiting).await?;
    Ok(axum::Json(Leased { success: true, execution: execution.map(ExecutionBody::from) }))
}

/// Takes an execution as soon as there is one.
async fn take(
    app: &App,
    worker: WorkerId,
    workflow: &WorkflowName,
    ttl: Ttl,
    wait: Duration,
) -> Answer<Option<leasehold::Execution>> {
    let store = app.leasehold().store();
    let deadline = leasehold::BootInstant::now().plus(wait);
    loop {
        // Before the look that finds nothing, so that no arrival is missed.
        let arrivals = store.tasks().map(|tasks| tasks.arrivals(&[workflow.queue()]));
        let left = deadline.after(leasehold::BootInstant::now());
        if let Some(execution) = take_whole(app, worker, workflow, ttl, left).await? {
            return Ok(Some(execution));
        }
        let left = deadline.after(leasehold::BootInstant::now());
        match arrivals {
            Some(mut arrivals) if !left.is_zero() => arrivals.next(Some(left)).await,
            _ => return Ok(None),
        }
    }
}

/// Takes an execution if there is one. If nobody is there any more when it is taken, it is given back.
async fn take_whole(
    app: &App,
    worker: WorkerId,
    workflow: &WorkflowName,
    ttl: Ttl,
    wait: Duration,
) -> Answer<Option<leasehold::Execution>> {
    let (leasehold, workflow) = (app.leasehold().clone(), workflow.clone());
    let (to, from) = tokio::sync::oneshot::channel();
    // In a task of its own: whoever goes away in the middle of it does not leave it half done.
    tokio::spawn(async move {
        let taken = match leasehold.workflows() {
            Ok(workflows) => workflows.take_as(worker, &[workflow], ttl, wait).await,
            Err(error) => Err(error),
        };
        if let Err(Ok(Some(unwanted))) = to.send(taken) {
            let back =
                Settle { id: unwanted.id.task(), token: unwanted.token, verdict: AttemptResult::Return };
            if let Some(tasks) = leasehold.store().tasks()
                && let Err(error) = tasks.settle(&[back]).await
            {
                tracing::warn!(%error, execution = %unwanted.id, "an execution that nobody wants could not be given back");
            }
        }
    });
    let gone = |_| Problem::new("INTERNAL", "taking an execution ended early");
    Ok(from.await.map_err(gone)??)
}

/// The lock of a workflow.
#[utoipa::path(
    get, path = "/api/v1/workflows/{name}/lock", tag = "workflows", operation_id = "getWorkflowLock",
    params(("name" = WorkflowName, Path, description = "The workflow; a '/' is written %2F")),
    responses((status = OK, body = LockBody)),
)]
async fn lock(
    State(app): State<App>,
    _: Caller<Reader>,
    Path(name): Path<String>,
) -> Answer<axum::Json<LockBody>> {
    let lock = app.leasehold().workflows()?.lock(&WorkflowName::new(name)?).await?;
    Ok(axum::Json(lock.into()))
}

/// Take a workflow's lock away from whoever has it. The execution ends as aborted; its process may still be at work, and its
/// token is old from then on.
#[utoipa::path(
    delete, path = "/api/v1/workflows/{name}/lock", tag = "workflows", operation_id = "unlockWorkflow",
    params(("name" = WorkflowName, Path, description = "The workflow; a '/' is written %2F")),
    request_body = UnlockBody,
    responses(
        (status = OK, body = LockBody),
    ),
)]
async fn unlock(
    State(app): State<App>,
    caller: Caller<Admin>,
    Path(name): Path<String>,
    Json(body): Json<UnlockBody>,
) -> Answer<axum::Json<LockBody>> {
    let workflow = WorkflowName::new(name)?;
    let lock = app.leasehold().workflows()?.unlock(&workflow, caller.holder()?, body.reason).await?;
    Ok(axum::Json(lock.into()))
}
