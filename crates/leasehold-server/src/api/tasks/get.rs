//! Tasks: reads and lists them, and changes one.

use axum::extract::Path;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use leasehold::client::{AttemptOutput, TaskExplanationView, TaskHistoryView, TaskView};
use leasehold::model::{
    LockName, Payload, Priority, QueueName, Reason, TaskId, TaskState, TaskUpdate, WorkerId,
};
use leasehold::store::{Cursor, ListTasks};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::values::{NotFound, StateConflict, TaskReply, present, retry_policy, task_reply, time, with_etag};
use crate::access::{Caller, Identity, Operator, Reader};
use crate::api::locks::page_size;
use crate::api::page_parts::list_tasks;
use crate::openapi::roles::routes;
use crate::openapi::schemas::{Attempts, PageCursor, PageSize, PositiveSeconds, VersionTag};
use crate::problem::{ApiResult, Problem, Reply};
use crate::request::body::{Json, MaybeJson, Query};
use crate::server::App;
use crate::webhooks::must_keep_its_webhook;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(get, update))
        .routes(routes!(why))
        .routes(routes!(output))
        .routes(routes!(history))
        .routes(routes!(list))
        .routes(routes!(retry))
        .routes(routes!(cancel))
}

/// Returns a task.
///
/// The `ETag` is its version, for `If-Match`.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", tag = "tasks", operation_id = "getTask",
    params(("id" = TaskId, Path, description = "Id of the task")),
    responses(
        (status = OK, body = TaskView, headers(("ETag" = String, description = "Version in quotes"))),
        NotFound,
    ),
)]
async fn get(app: App, caller: Caller<Reader>, Path(id): Path<String>) -> ApiResult<Response> {
    let task = app.leasehold.tasks()?.get(id.parse()?).await?;
    caller.must_reach_queue(&task.queue)?;
    Ok(with_etag(&task, axum::Json(TaskView::from(&task)).into_response()))
}

/// Explains why a task does not run now.
///
/// The reasons describe the task, its queue, its lock and the workers at one point in time. A
/// token with scopes sees no names of holders and hosts.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/why", tag = "tasks", operation_id = "explainTask",
    params(("id" = TaskId, Path, description = "Id of the task")),
    responses((status = OK, body = TaskExplanationView), NotFound),
)]
async fn why(app: App, caller: Caller<Reader>, Path(id): Path<String>) -> Reply<TaskExplanationView> {
    let mut explanation = app.leasehold.tasks()?.why(id.parse()?).await?;
    caller.must_reach_queue(&explanation.task.queue)?;
    if caller.is_scoped() {
        explanation = explanation.without_names();
    }
    Ok(axum::Json(TaskExplanationView::from(&explanation)))
}

/// Output of the attempts at a task.
#[derive(Serialize, ToSchema)]
struct TaskOutput {
    /// Attempts with kept output, oldest first.
    attempts: Vec<AttemptOutput>,
}

/// Returns the output of a task's attempts.
///
/// A worker that runs commands keeps the last part of what they write, 64 KiB for each attempt by
/// default. The list is empty if the attempts wrote nothing, or if their workers keep no output.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/output", tag = "tasks", operation_id = "getTaskOutput",
    params(("id" = TaskId, Path, description = "Id of the task")),
    responses((status = OK, body = TaskOutput), NotFound),
)]
async fn output(app: App, caller: Caller<Reader>, Path(id): Path<String>) -> Reply<TaskOutput> {
    let (tasks, id) = (app.leasehold.tasks()?, id.parse()?);
    caller.must_reach_queue(&tasks.get(id).await?.queue)?;
    Ok(axum::Json(TaskOutput { attempts: tasks.output(id).await? }))
}

/// History of a task.
#[derive(Serialize, ToSchema)]
struct TaskHistory {
    /// Events, oldest first.
    events: Vec<TaskHistoryView>,
}

/// Lists the events of a task, oldest first.
///
/// The events come from the stored task: when it was added, the starts and ends of its attempts, changes by
/// callers, and its end. A task keeps its newest 50 attempts and changes. `attempt_failed` is the end of
/// an attempt; `succeeded`, `failed` and `aborted` are the end of the task.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/history", tag = "tasks", operation_id = "taskHistory",
    params(("id" = TaskId, Path, description = "Id of the task")),
    responses((status = OK, body = TaskHistory), NotFound),
)]
async fn history(app: App, caller: Caller<Reader>, Path(id): Path<String>) -> Reply<TaskHistory> {
    let task = app.leasehold.tasks()?.get(id.parse()?).await?;
    caller.must_reach_queue(&task.queue)?;
    Ok(axum::Json(TaskHistory { events: TaskHistoryView::all(&task) }))
}

/// Query for tasks.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListTasksQuery {
    /// Only tasks of this queue.
    #[param(value_type = Option<QueueName>)]
    queue: Option<String>,
    /// Only tasks in this state: `scheduled`, `blocked`, `pending`, `running`, `succeeded`,
    /// `failed` or `aborted`.
    #[param(value_type = Option<TaskState>)]
    state: Option<String>,
    /// Only tasks with this lock.
    #[param(value_type = Option<LockName>)]
    lock: Option<String>,
    /// Only tasks that this worker has leased, or leased last.
    #[param(value_type = Option<WorkerId>)]
    worker: Option<String>,
    /// Whether archived tasks are included. Default: `false`.
    archived: Option<bool>,
    /// `nextCursor` of the previous page.
    #[param(value_type = Option<PageCursor>)]
    cursor: Option<String>,
    /// Maximum number of tasks, 1 to 1000. Default: 100.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// Page of tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct TaskPage {
    /// Tasks, newest first.
    tasks: Vec<TaskView>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists tasks, newest first.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "tasks", operation_id = "listTasks", params(ListTasksQuery),
    responses((status = OK, body = TaskPage)),
)]
async fn list(app: App, caller: Caller<Reader>, Query(query): Query<ListTasksQuery>) -> Reply<TaskPage> {
    let list = ListTasks::default()
        .queue(query.queue.map(QueueName::new).transpose()?)
        .state(query.state.map(|state| state.parse::<TaskState>()).transpose()?)
        .lock(query.lock.map(LockName::new).transpose()?)
        .worker(query.worker.map(|worker| worker.parse::<WorkerId>()).transpose()?)
        .archived(query.archived.unwrap_or(false))
        .after(query.cursor.filter(|cursor| !cursor.is_empty()).map(Cursor))
        .limit(page_size(query.limit)?);
    caller.must_reach_queues(list.queue.as_ref())?;
    let page = list_tasks(&app.leasehold.tasks()?, list).await?;
    let tasks = page.items.iter().map(TaskView::from).collect();
    Ok(axum::Json(TaskPage { tasks, next_cursor: page.next.map(|cursor| cursor.0) }))
}

/// Rejects a caller whose scopes do not include the queue of this task.
async fn must_reach(app: &App, identity: &Identity, id: TaskId) -> ApiResult<()> {
    if identity.is_scoped() {
        identity.must_reach_queue(&app.leasehold.tasks()?.get(id).await?.queue)?;
    }
    Ok(())
}

/// Changes to a task. Omitted fields keep their values.
#[derive(Default, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdateBody {
    /// New payload. Rejected unless the task is scheduled, blocked or pending.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Payload>,
    /// New priority, -1000 to 1000. Rejected if the task has finished.
    #[schema(value_type = Option<Priority>)]
    priority: Option<i32>,
    /// New earliest start time. Rejected unless the task is scheduled, blocked or pending.
    #[schema(format = DateTime, pattern = "^(19[7-9][0-9]|[2-9][0-9]{3})-")]
    run_at: Option<String>,
    /// New maximum number of attempts, 1 to 1000. Rejected if the task has finished.
    #[schema(value_type = Option<Attempts>)]
    max_attempts: Option<u32>,
    /// New delay in seconds after the first failed attempt. Rejected if the task has finished.
    #[schema(value_type = Option<PositiveSeconds>)]
    backoff_seconds: Option<f64>,
    /// Whether the task is archived. Rejected unless the task has finished.
    archived: Option<bool>,
}

/// Updates a task if it still has the expected version.
#[utoipa::path(
    patch, path = "/api/v1/tasks/{id}", tag = "tasks", operation_id = "updateTask",
    params(
        ("id" = TaskId, Path, description = "Id of the task"),
        ("If-Match" = VersionTag, Header, description = "Expected version in quotes: the ETag of the task"),
    ),
    request_body = UpdateBody,
    responses(
        (status = OK, body = TaskReply, headers(("ETag" = String, description = "New version in quotes"))),
        (status = PRECONDITION_FAILED, description = "VERSION_CONFLICT: the task has another version, given in currentVersion",
            body = Problem, content_type = "application/problem+json"),
        StateConflict, NotFound,
    ),
)]
async fn update(
    app: App,
    caller: Caller<Operator>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(body): Json<UpdateBody>,
) -> ApiResult<Response> {
    let (id, tasks, expected) = (id.parse()?, app.leasehold.tasks()?, expected_version(&headers)?);
    if body == UpdateBody::default() {
        return Err(Problem::invalid("the body has no changes"));
    }
    must_reach(&app, &caller, id).await?;
    if let Some(store) = app.leasehold.store().tasks() {
        must_keep_its_webhook(store, id, body.payload.as_ref()).await?;
    }
    let retries = if body.max_attempts.is_some() || body.backoff_seconds.is_some() {
        // Keeps the values that the request omits. If they change concurrently, the version does
        // not match.
        let current = tasks.get(id).await?.retries;
        Some(retry_policy(body.max_attempts, body.backoff_seconds, current)?)
    } else {
        None
    };
    let change = TaskUpdate {
        expected,
        by: Some(caller.holder()?),
        payload: body.payload,
        priority: body.priority.map(Priority::new).transpose()?,
        run_at: body.run_at.map(|at| time("runAt", &at)).transpose()?,
        retries,
        archived: body.archived,
    };
    Ok(task_reply(&tasks.update(id, change).await?))
}

fn expected_version(headers: &HeaderMap) -> ApiResult<u64> {
    let hint = "read the task and send its ETag unchanged, such as If-Match: \"3\"";
    let Some(tag) = headers.get(header::IF_MATCH) else {
        return Err(Problem::invalid("the header If-Match is missing").hint(hint));
    };
    let text = tag.to_str().unwrap_or("").trim();
    let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    version.and_then(|version| version.parse().ok()).ok_or_else(|| {
        Problem::invalid(format!("invalid If-Match {text}: must be a version in quotes")).hint(hint)
    })
}

/// Retries a failed or aborted task with all its attempts, or runs a scheduled task now.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/retry", tag = "tasks", operation_id = "retryTask",
    params(("id" = TaskId, Path, description = "Id of the task")),
    responses((status = OK, body = TaskReply), StateConflict, NotFound),
)]
async fn retry(app: App, caller: Caller<Operator>, Path(id): Path<String>) -> ApiResult<Response> {
    let id = id.parse()?;
    must_reach(&app, &caller, id).await?;
    let task = app.leasehold.tasks()?.retry(id, caller.holder()?).await?;
    Ok(task_reply(&task))
}

/// Reason of an operation.
#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct ReasonBody {
    /// Reason, shown with the task or the queue.
    pub(super) reason: Option<Reason>,
}

/// Cancels a task.
///
/// A waiting task is aborted at once. The worker of a running task receives the request with its
/// next heartbeat.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/cancel", tag = "tasks", operation_id = "cancelTask",
    params(("id" = TaskId, Path, description = "Id of the task")), request_body = Option<ReasonBody>,
    responses((status = OK, body = TaskReply), StateConflict, NotFound),
)]
async fn cancel(
    app: App,
    caller: Caller<Operator>,
    Path(id): Path<String>,
    MaybeJson(body): MaybeJson<ReasonBody>,
) -> ApiResult<Response> {
    let id = id.parse()?;
    must_reach(&app, &caller, id).await?;
    let task = app.leasehold.tasks()?.cancel(id, caller.holder()?, body.reason).await?;
    Ok(task_reply(&task))
}
