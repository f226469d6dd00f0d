//! Errors as `application/problem+json` (RFC 9457), with the fields that clients match on.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold::model::{Conflict, HeldBy, ValidationError};
use leasehold::store::protocol::store_error_kind_name;
use leasehold::{Error, StoreErrorKind};
use serde::Serialize;
use utoipa::ToSchema;

use crate::status;

/// Result type of every handler.
pub(crate) type ApiResult<T> = Result<T, Problem>;
/// Result type of handlers that respond with JSON.
pub(crate) type Reply<T> = ApiResult<axum::Json<T>>;

/// Exact detail of a start that lost a race against another start.
const RACED: &str = "Another concurrent request acquired the execution lock";
/// Maximum `Retry-After` of a response.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Error response. Clients match on `code`.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// URL of the documentation of this error.
    #[serde(rename = "type")]
    #[schema(example = "https://github.com/leasehold/leasehold/blob/main/docs/errors.md#lock_conflict")]
    kind: String,
    /// Title of the error.
    title: &'static str,
    /// HTTP status of the response.
    #[schema(example = 409)]
    status: u16,
    /// Error message for people.
    detail: String,
    /// Path of the request.
    #[serde(skip_serializing_if = "String::is_empty")]
    instance: String,
    /// Always false.
    success: bool,
    /// Stable error code for programs.
    #[schema(example = "LOCK_CONFLICT")]
    code: &'static str,
    /// Suggestion for a fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Id of the request, as in the header `X-Request-Id`.
    #[serde(skip_serializing_if = "String::is_empty")]
    request_id: String,
    /// Name of the workflow that could not be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow_id: Option<String>,
    /// Id of the execution that holds the lock or the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    existing_execution_id: Option<String>,
    /// Current version of the task, if the request expected another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    current_version: Option<u64>,
    /// Leases that hold the lock.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holders: Vec<BlockingLease>,
    /// Kind of a store error: `unavailable`, `not_permitted`, `misconfigured`, `not_supported` or `broken`.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error_kind: Option<&'static str>,
    /// Time in seconds after which a retry may succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
    /// Whether the response requests basic authentication instead of a bearer token.
    #[serde(skip)]
    wants_basic_auth: bool,
}

/// Lease that blocks a request.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct BlockingLease {
    /// Name of the holder.
    holder: String,
    /// Public reference of the lease: a hash of the lease id that grants no access. `GET
    /// /api/v1/locks/{name}` shows it, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ref: Option<String>,
    /// Fencing token of the lease.
    token: u64,
    /// Time of the grant.
    #[schema(format = DateTime)]
    acquired_at: String,
    /// Time at which the lease expires unless it is renewed.
    #[schema(format = DateTime)]
    expires_at: String,
    /// Remaining time of the lease in seconds when the request was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_seconds: Option<f64>,
}

impl Problem {
    pub(crate) fn new(code: &str, detail: impl Into<String>) -> Self {
        let kind = status::of(code);
        Self {
            kind: format!(
                "https://github.com/leasehold/leasehold/blob/main/docs/errors.md#{}",
                kind.code.to_ascii_lowercase()
            ),
            title: kind.title,
            status: kind.status.as_u16(),
            detail: detail.into(),
            instance: String::new(),
            success: false,
            code: kind.code,
            hint: None,
            request_id: String::new(),
            workflow_id: None,
            existing_execution_id: None,
            current_version: None,
            holders: Vec::new(),
            store_error_kind: None,
            retry_after_seconds: None,
            wants_basic_auth: false,
        }
    }

    pub(crate) fn invalid(detail: impl std::fmt::Display) -> Self {
        Self::new("INVALID", detail.to_string())
    }

    /// Returns every code that a problem of a server can have.
    pub fn codes() -> Vec<&'static str> {
        status::KINDS.iter().map(|kind| kind.code).collect()
    }

    /// Returns the code of the problem.
    pub fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) const fn title(&self) -> &'static str {
        self.title
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn suggestion(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub(crate) fn status(&self) -> StatusCode {
        status::of(self.code).status
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn at(mut self, position: &str) -> Self {
        self.detail = format!("{position}: {}", self.detail);
        self
    }

    /// Requests basic authentication (name and password) from the client.
    pub(crate) fn with_basic_challenge(mut self) -> Self {
        self.wants_basic_auth = true;
        self
    }

    /// Sets the delay after which a retry may succeed, rounded up to seconds, between 1 and 30.
    pub(crate) fn retry_after(mut self, delay: Duration) -> Self {
        let seconds = delay.min(MAX_RETRY_AFTER).as_secs_f64().ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 30")]
        let seconds = (seconds as u64).max(1);
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Sets the path and the id of the request, and removes the hidden texts from server errors; they
    /// appear only in the log.
    pub(crate) fn for_request(mut self, path: &str, id: &str, hidden: &[String]) -> Self {
        path.clone_into(&mut self.instance);
        id.clone_into(&mut self.request_id);
        if self.status >= 500 {
            for text in hidden {
                self.detail = self.detail.replace(text, "");
                self.hint = self.hint.map(|hint| hint.replace(text, ""));
            }
        }
        self
    }

    fn held_by(mut self, conflict: &Conflict) -> Self {
        let blocking = |held: &HeldBy| BlockingLease {
            holder: held.holder.to_string(),
            lease_ref: held.lease.map(|lease| lease.to_string()),
            expires_in_seconds: conflict.left(held).map(|remaining| remaining.as_secs_f64()),
            token: held.token.get(),
            acquired_at: format!("{:#}", held.since),
            expires_at: format!("{:#}", held.until),
        };
        self.holders = conflict.holders.iter().take(10).map(blocking).collect();
        self
    }

    /// Returns the response: status, headers and body. Internal errors are logged by `From<Error>`.
    pub(crate) fn to_response(&self) -> Response {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut response = (status::of(self.code).status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == "UNAUTHENTICATED" {
            let (basic, bearer) = ("Basic realm=\"leasehold\"", "Bearer realm=\"leasehold\"");
            let scheme = if self.wants_basic_auth { basic } else { bearer };
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
        }
        response
    }
}

/// Returns the error for invalid data in the store.
pub(crate) fn broken(message: impl Into<String>) -> Error {
    Error::store(StoreErrorKind::Broken, message, "")
}

/// Converts an error of the library.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let mut problem = Self::new(error.code(), error.to_string());
        if problem.code == "INTERNAL" {
            let cause = std::error::Error::source(&error).map(tracing::field::display);
            tracing::error!(code = error.code(), %error, cause, "a request failed");
        }
        if let Some(hint) = hint(&error) {
            problem = problem.hint(hint);
        }
        if let Error::Store { kind, .. } = &error {
            problem.store_error_kind = Some(store_error_kind_name(*kind));
        }
        match &error {
            Error::WorkflowLocked { workflow, execution, raced, reason } => {
                let detail = if *raced { RACED.to_owned() } else { reason.clone() };
                let existing_execution_id = execution.map(|id| id.to_string());
                let workflow_id = Some(workflow.to_string());
                let problem = Self { detail, workflow_id, existing_execution_id, ..problem };
                problem.retry_after(Duration::from_secs(1))
            }
            Error::ExecutionKeyReused { workflow, execution, .. } => {
                let existing_execution_id = Some(execution.to_string());
                Self { workflow_id: Some(workflow.to_string()), existing_execution_id, ..problem }
            }
            Error::Conflict { conflict, .. } => problem.held_by(conflict).retry_after(Duration::from_secs(1)),
            Error::VersionConflict { current, .. } => Self { current_version: Some(*current), ..problem },
            _ if error.is_retryable() => {
                problem.retry_after(error.retry_after().unwrap_or(Duration::from_secs(1)))
            }
            _ => problem,
        }
    }
}

/// Returns the hint for an error: the request that shows more, or what the library suggests.
fn hint(error: &Error) -> Option<&str> {
    Some(match error {
        Error::Conflict { .. } => "GET /api/v1/locks/{name} shows the holders and waiters",
        Error::NotHeld { .. } | Error::Lost { .. } => "GET /api/v1/locks/{name}/history shows what happened",
        Error::UnknownQueue { .. } => "GET /api/v1/queues lists the queues",
        Error::UnknownSchedule(_) => "GET /api/v1/schedules lists the schedules",
        Error::VersionConflict { .. } => "read the task again with GET /api/v1/tasks/{id}",
        Error::TaskState { .. } | Error::LockQueueFull { .. } => "GET /api/v1/tasks/{id} shows the task",
        Error::WorkflowLocked { execution: Some(_), .. } => {
            "try again later; GET /api/v1/executions/{id} shows the conflicting execution"
        }
        Error::WorkflowLocked { .. } => "GET /api/v1/workflows/{name}/lock shows who has the lock",
        Error::ExecutionFinished { .. } => "GET /api/v1/executions/{id} shows the execution",
        _ => return error.hint(),
    })
}

impl From<ValidationError> for Problem {
    fn from(invalid: ValidationError) -> Self {
        Error::from(invalid).into()
    }
}

/// Attaches the problem to the response, because the middleware in `request_id.rs` adds the
/// request and writes it again.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.to_response();
        response.extensions_mut().insert(self);
        response
    }
}
