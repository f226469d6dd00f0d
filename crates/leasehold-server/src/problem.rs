//! Errors as `application/problem+json` (RFC 9457), with the fields that clients match on.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use leasehold::Error;
use leasehold::model::Conflict;
use leasehold::store::protocol::trouble_word;
use serde::Serialize;
use utoipa::ToSchema;

use crate::status;

/// Result type of every handler.
pub(crate) type Answer<T> = Result<T, Problem>;

/// Exact detail of a start that lost a race against another start.
const RACED: &str = "Another concurrent request acquired the execution lock";
/// Maximum delay that a response asks the client to wait before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A problem, as clients read it. `code` is what to match on.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// A page about this kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "https://github.com/leasehold/leasehold/blob/main/docs/errors.md#lock_conflict")]
    kind: String,
    /// What it is called.
    title: &'static str,
    /// The HTTP status, again.
    #[schema(example = 409)]
    status: u16,
    /// What happened, in words for a person.
    detail: String,
    /// The path that was asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    instance: String,
    /// Always false.
    success: bool,
    /// A stable name for programs.
    #[schema(example = "LOCK_CONFLICT")]
    code: &'static str,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// The id of this request, as in its `X-Request-Id`.
    #[serde(skip_serializing_if = "String::is_empty")]
    request_id: String,
    /// The workflow that could not be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow_id: Option<String>,
    /// The execution that is in the way, or that has the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    existing_execution_id: Option<String>,
    /// The version that the task has, if another was expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    current_version: Option<u64>,
    /// Who holds the lock.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holders: Vec<InTheWay>,
    /// What kind of trouble the store is in: `unavailable`, `not_permitted`, `misconfigured` or `broken`.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'static str>,
    /// When to try again, if that may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
    /// Whether a client without a token is asked for a name and a password, and not for a bearer token.
    #[serde(skip)]
    asks_for_password: bool,
}

/// A lease that is in the way.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct InTheWay {
    /// Who has it.
    holder: String,
    /// The public name of its lease: a hash of the lease id, with which nothing can be done. `GET /api/v1/locks/{name}`
    /// shows it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ref: Option<String>,
    /// Its token.
    token: u64,
    /// Since when.
    #[schema(format = DateTime)]
    acquired_at: String,
    /// Until when, unless renewed.
    #[schema(format = DateTime)]
    expires_at: String,
    /// How long that is from the refusal on, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_seconds: Option<f64>,
}

impl Problem {
    /// Returns a problem with this code.
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
            trouble: None,
            retry_after_seconds: None,
            asks_for_password: false,
        }
    }

    /// Returns a problem for an invalid value in the request.
    pub(crate) fn invalid(detail: impl std::fmt::Display) -> Self {
        Self::new("INVALID", detail.to_string())
    }

    /// Returns every code that a problem of a server can have.
    pub fn codes() -> Vec<&'static str> {
        status::codes()
    }

    /// Returns the code of the problem.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// Sets the suggestion for the client.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prefixes the detail with the position in the request.
    pub(crate) fn at(mut self, place: &str) -> Self {
        self.detail = format!("{place}: {}", self.detail);
        self
    }

    /// Requests basic authentication (name and password) from the client.
    pub(crate) fn ask_for_password(mut self) -> Self {
        self.asks_for_password = true;
        self
    }

    /// Sets the execution that conflicts with the request.
    pub(crate) fn existing_execution(mut self, id: impl Into<String>) -> Self {
        self.existing_execution_id = Some(id.into());
        self
    }

    /// Sets the delay after which a retry may succeed, rounded up to seconds, between 1 and 30.
    pub(crate) fn retry_after(mut self, pause: Duration) -> Self {
        let seconds = pause.min(LONGEST_PAUSE).as_secs_f64().ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 30")]
        let seconds = (seconds as u64).max(1);
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Sets the path and the id of the request.
    pub(crate) fn of_request(mut self, path: &str, id: &str) -> Self {
        path.clone_into(&mut self.instance);
        id.clone_into(&mut self.request_id);
        self
    }

    /// Removes these texts from server errors; they appear only in the log.
    pub(crate) fn without(mut self, hidden: &[String]) -> Self {
        if self.status >= 500 {
            for text in hidden {
                self.detail = self.detail.replace(text, "");
                self.hint = self.hint.map(|hint| hint.replace(text, ""));
            }
        }
        self
    }

    fn held_by(mut self, conflict: &Conflict) -> Self {
        let in_the_way = |held: &leasehold::model::HeldBy| InTheWay {
            holder: held.holder.to_string(),
            lease_ref: held.lease.map(|lease| lease.to_string()),
            expires_in_seconds: conflict.left(held).map(|left| left.as_secs_f64()),
            token: held.token.get(),
            acquired_at: format!("{:#}", held.since),
            expires_at: format!("{:#}", held.until),
        };
        self.holders = conflict.holders.iter().take(10).map(in_the_way).collect();
        self
    }

    /// Returns the response: status, headers and body. Internal errors are logged by `From<Error>`.
    pub(crate) fn write(&self) -> Response {
        let kind = status::of(self.code);
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut response = (kind.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == "UNAUTHENTICATED" {
            let scheme = if self.asks_for_password {
                "Basic realm=\"leasehold\""
            } else {
                "Bearer realm=\"leasehold\""
            };
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
        }
        response
    }
}

/// Converts an error of the library.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let mut problem = Self::new(error.code(), error.to_string());
        if problem.code == "INTERNAL" {
            let cause = std::error::Error::source(&error).map(tracing::field::display);
            tracing::error!(code = error.code(), %error, cause, "a request failed");
        }
        if let Some(hint) = error.hint() {
            problem = problem.hint(hint);
        }
        if let Error::Store { trouble, .. } = &error {
            problem.trouble = Some(trouble_word(*trouble));
        }
        match &error {
            Error::WorkflowLocked { workflow, execution, raced, reason } => {
                let detail = if *raced { RACED } else { reason };
                let problem = Self { detail: detail.to_owned(), ..problem };
                let existing_execution_id = execution.map(|id| id.to_string());
                let workflow_id = Some(workflow.to_string());
                Self { workflow_id, existing_execution_id, ..problem }.retry_after(Duration::from_secs(1))
            }
            Error::ExecutionKeyReused { workflow, execution, .. } => {
                let workflow_id = Some(workflow.to_string());
                Self { workflow_id, ..problem }.existing_execution(execution.to_string())
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

impl From<leasehold::model::ValidationError> for Problem {
    fn from(invalid: leasehold::model::ValidationError) -> Self {
        Error::from(invalid).into()
    }
}

/// Attaches the problem to the response, because the envelope, which knows the request, writes it again.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.write();
        response.extensions_mut().insert(self);
        response
    }
}
