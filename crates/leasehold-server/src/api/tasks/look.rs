//! One task, and lists of them.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use leasehold::client::TaskView;
use leasehold::model::{LockName, QueueName, TaskId, TaskState, WorkerId};
use leasehold::store::{Cursor, ListTasks};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::problems::Missing;
use super::replies::tagged;
use super::values::{MOST, task_id, worker_id, wrong};
use crate::access::{Caller, Reader};
use crate::body::Query;
use crate::described::{PageCursor, PageSize};
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

/// So many on a page if nobody says.
const PAGE: u32 = 100;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(get)).routes(routes!(list))
}

/// Everything about a task. The `ETag` is its version, for `If-Match`.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", tag = "tasks", operation_id = "getTask",
    params(("id" = TaskId, Path, description = "The task")),
    responses(
        (status = OK, body = TaskView, headers(("ETag" = String, description = "Its version, in quotes"))),
        Missing,
    ),
)]
async fn get(State(app): State<App>, caller: Caller<Reader>, Path(id): Path<String>) -> Answer<Response> {
    let task = app.leasehold().tasks()?.get(task_id(&id)?).await?;
    caller.who().must_reach_queue(&task.queue)?;
    Ok(tagged(&task, axum::Json(TaskView::from(&task)).into_response()))
}

/// Which tasks.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Of this queue.
    #[param(value_type = Option<QueueName>)]
    queue: Option<String>,
    /// In this state: scheduled, blocked, pending, running, succeeded, failed or aborted.
    #[param(value_type = Option<TaskState>)]
    state: Option<String>,
    /// With this lock.
    #[param(value_type = Option<LockName>)]
    lock: Option<String>,
    /// That this worker has, or had last.
    #[param(value_type = Option<WorkerId>)]
    worker: Option<String>,
    /// Also those that were put away.
    archived: Option<bool>,
    /// The `nextCursor` of the page before.
    #[param(value_type = Option<PageCursor>)]
    cursor: Option<String>,
    /// At most so many, 1 to 1000; 100 if not said.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// A page of tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct TaskList {
    /// The newest first.
    tasks: Vec<TaskView>,
    /// For the next page; not there if this is the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Tasks, the newest first, a page at a time.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "tasks", operation_id = "listTasks", params(Which),
    responses((status = OK, body = TaskList)),
)]
async fn list(
    State(app): State<App>,
    caller: Caller<Reader>,
    Query(which): Query<Which>,
) -> Answer<axum::Json<TaskList>> {
    let ask = ListTasks {
        queue: which.queue.map(QueueName::new).transpose()?,
        state: which.state.map(|state| state.parse::<TaskState>()).transpose()?,
        lock: which.lock.map(LockName::new).transpose()?,
        worker: which.worker.map(|worker| worker_id(&worker)).transpose()?,
        archived: which.archived.unwrap_or(false),
        brief: false,
        after: which.cursor.filter(|cursor| !cursor.is_empty()).map(Cursor),
        limit: page_size(which.limit)?,
    };
    caller.who().must_reach_queues(ask.queue.as_ref())?;
    let page = app.leasehold().tasks()?.list(&ask).await?;
    let tasks = page.items.iter().map(TaskView::from).collect();
    Ok(axum::Json(TaskList { tasks, next_cursor: page.next.map(|cursor| cursor.0) }))
}

fn page_size(limit: Option<u32>) -> Answer<u32> {
    match limit.unwrap_or(PAGE) {
        limit if limit > 0 && limit as usize <= MOST => Ok(limit),
        limit => Err(wrong("limit", format!("{limit} is out of bounds; it is 1 to {MOST}"))),
    }
}
