//! Queries for tasks.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use leasehold::client::TaskView;
use leasehold::model::{LockName, QueueName, TaskId, TaskState, WorkerId};
use leasehold::store::{Cursor, ListTasks};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::responses::NotFound;
use super::responses::with_etag;
use super::values::{task_id, worker_id};
use crate::access::{Caller, Reader};
use crate::api::locks::page_size;
use crate::body::Query;
use crate::problem::ApiResult;
use crate::roles::routes;
use crate::schemas::{PageCursor, PageSize};
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(get)).routes(routes!(list))
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
async fn get(State(app): State<App>, caller: Caller<Reader>, Path(id): Path<String>) -> ApiResult<Response> {
    let task = app.leasehold().tasks()?.get(task_id(&id)?).await?;
    caller.identity().must_reach_queue(&task.queue)?;
    Ok(with_etag(&task, axum::Json(TaskView::from(&task)).into_response()))
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
async fn list(
    State(app): State<App>,
    caller: Caller<Reader>,
    Query(query): Query<ListTasksQuery>,
) -> ApiResult<axum::Json<TaskPage>> {
    let list = ListTasks {
        queue: query.queue.map(QueueName::new).transpose()?,
        state: query.state.map(|state| state.parse::<TaskState>()).transpose()?,
        lock: query.lock.map(LockName::new).transpose()?,
        worker: query.worker.map(|worker| worker_id(&worker)).transpose()?,
        archived: query.archived.unwrap_or(false),
        brief: false,
        after: query.cursor.filter(|cursor| !cursor.is_empty()).map(Cursor),
        limit: page_size(query.limit)?,
    };
    caller.identity().must_reach_queues(list.queue.as_ref())?;
    let page = app.leasehold().tasks()?.list(&list).await?;
    let tasks = page.items.iter().map(TaskView::from).collect();
    Ok(axum::Json(TaskPage { tasks, next_cursor: page.next.map(|cursor| cursor.0) }))
}
