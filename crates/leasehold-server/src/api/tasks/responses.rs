//! Responses that several task endpoints share. `openapi.rs` adds the problems that are common to
//! all endpoints.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use leasehold::client::TaskView;
use leasehold::model::Task;
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

use crate::problem::Problem;

/// Task after a successful change.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskReply {
    /// Always true.
    success: bool,
    /// Task after the change.
    task: TaskView,
}

/// Result without further data.
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

/// Returns the response with a task after a change.
pub(super) fn task_reply(task: &Task) -> Response {
    let reply = TaskReply { success: true, task: TaskView::from(task) };
    with_etag(task, axum::Json(reply).into_response())
}

/// Adds the version of a task as the `ETag`, which clients send back as `If-Match`.
pub(super) fn with_etag(task: &Task, mut response: Response) -> Response {
    let tag =
        HeaderValue::from_str(&format!("\"{}\"", task.version)).expect("a quoted number is plain ASCII");
    response.headers_mut().insert(header::ETAG, tag);
    response
}

/// The task, queue or schedule does not exist.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
pub(super) enum NotFound {
    /// The resource does not exist
    #[response(status = NOT_FOUND, content_type = "application/problem+json")]
    Unknown(Problem),
}

/// The lease has ended: `LEASE_LOST`.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
pub(super) enum LeaseLost {
    /// `LEASE_LOST`: no lease has this token; the worker must stop the task
    #[response(status = CONFLICT, content_type = "application/problem+json")]
    Lost(Problem),
}

/// The state of the task does not allow the operation: `TASK_STATE`.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
pub(super) enum StateConflict {
    /// `TASK_STATE`: the state of the task does not allow this operation
    #[response(status = CONFLICT, content_type = "application/problem+json")]
    State(Problem),
}
