//! What several of these requests answer.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use leasehold::client::TaskView;
use leasehold::model::Task;
use serde::Serialize;
use utoipa::ToSchema;

/// It is done, and the task is now like this.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskReply {
    /// Always true.
    success: bool,
    /// The task as it is now.
    task: TaskView,
}

/// It is done.
#[derive(Serialize, ToSchema)]
pub(super) struct Success {
    /// Always true.
    success: bool,
}

impl Success {
    pub(super) const fn json() -> axum::Json<Self> {
        axum::Json(Self { success: true })
    }
}

/// The task as it is now, with its version as the tag.
pub(super) fn changed(task: &Task) -> Response {
    let reply = TaskReply { success: true, task: TaskView::from(task) };
    tagged(task, axum::Json(reply).into_response())
}

/// Says which version of a task this is: what `If-Match` wants to hear.
pub(super) fn tagged(task: &Task, mut response: Response) -> Response {
    let tag = HeaderValue::from_str(&format!("\"{}\"", task.version)).expect("a number in quotes is plain");
    response.headers_mut().insert(header::ETAG, tag);
    response
}
