//! What came of starting an execution, as clients read it.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold::model::WorkflowName;
use leasehold::{Error, StartResult};
use serde::Serialize;
use utoipa::ToSchema;

use crate::problem::{Answer, Problem};
use crate::server::App;
use crate::status;

/// What came of a start.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Started {
    /// Always true: nothing is wrong.
    success: bool,
    /// The workflow.
    workflow: String,
    /// Whether this request has started an execution, which runs or waits for its turn.
    #[serde(rename = "started")]
    is_new: bool,
    /// The execution that there is for this start: the new one, or the one that had the key before.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    /// Whether the key had started it before.
    duplicate: bool,
    /// Where it stands: blocked if it waits for its turn, pending, running, succeeded, failed or aborted. If nothing was
    /// started: skipped, or filtered for an event that the filter of its trigger does not let pass.
    #[schema(example = "pending")]
    state: &'static str,
    /// Which try of its key it is, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// The failed execution whose key it has taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_of: Option<String>,
    /// The execution that is in the way, if nothing was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    existing_execution_id: Option<String>,
    /// Why nothing was started, if it was skipped or filtered.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Started {
    fn new(workflow: &WorkflowName, start: &StartResult) -> Self {
        let execution = start.execution();
        let (in_the_way, reason) = match start {
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
            state: execution.map_or("skipped", |execution| execution.state.word()),
            attempt: execution.map(|execution| execution.attempt),
            retry_of: execution.and_then(|execution| execution.retry_of).map(|id| id.to_string()),
            existing_execution_id: in_the_way,
            reason,
        }
    }

    /// The answer to an event that does not pass the filter of its trigger.
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

    /// The answer, with the status that `new` is for a new execution.
    pub(crate) fn answer(workflow: &WorkflowName, start: &StartResult, new: StatusCode) -> Response {
        let status = match start {
            StartResult::Started(_) => new,
            StartResult::Queued(_) => status::ACCEPTED,
            StartResult::Duplicate(_) | StartResult::Skipped { .. } => StatusCode::OK,
        };
        let started = Self::new(workflow, start);
        let place = started.execution_id.as_ref().map(|id| format!("/api/v1/executions/{id}"));
        let mut response = (status, axum::Json(started)).into_response();
        if let Some(place) = place.and_then(|place| HeaderValue::from_str(&place).ok()) {
            response.headers_mut().insert(header::LOCATION, place);
        }
        response
    }
}

/// The problem of a start that failed. Who is in the way is asked how long it may take.
pub(crate) async fn refused(app: &App, error: Error) -> Problem {
    let Error::WorkflowLocked { workflow, .. } = &error else { return error.into() };
    let left = left(app, workflow).await.unwrap_or(Duration::from_secs(1));
    Problem::from(error).retry_after(left)
}

/// How long until the workflow's lock is free, if nobody renews it.
async fn left(app: &App, workflow: &WorkflowName) -> Answer<Duration> {
    let lock = app.leasehold().status(&workflow.lock()).await?;
    let until = lock.expires_at.ok_or_else(|| Problem::invalid("nobody has it"))?;
    Ok(until.since(lock.now))
}
