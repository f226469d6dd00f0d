//! Response to the start of an execution.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold::model::WorkflowName;
use leasehold::{Error, StartResult};
use serde::Serialize;
use utoipa::ToSchema;

use crate::problem::{ApiResult, Problem};
use crate::server::App;
use crate::status;

/// Result of a start.
#[derive(Serialize, ToSchema)]
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

    /// Returns the response to an event that the filter of its trigger rejects.
    pub(crate) fn filtered(workflow: &WorkflowName, reason: String) -> Response {
        let filtered = Self {
            success: true,
            workflow: workflow.to_string(),
            is_new: false,
            execution_id: None,
            duplicate: false,
            state: "filtered",
            attempt: None,
            retry_of: None,
            existing_execution_id: None,
            reason: Some(reason),
        };
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
    let remaining = remaining_lock_time(app, workflow).await.unwrap_or(Duration::from_secs(1));
    Problem::from(error).retry_after(remaining)
}

/// Returns the time until the lock of the workflow expires unless it is renewed.
async fn remaining_lock_time(app: &App, workflow: &WorkflowName) -> ApiResult<Duration> {
    let lock = app.leasehold().locks().status(&workflow.lock()).await?;
    let until = lock.expires_at.ok_or_else(|| Problem::invalid("the lock is free"))?;
    Ok(until.since(lock.now))
}
