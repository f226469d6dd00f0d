//! Checked values of requests (durations, times, ids, retry policies), and responses that several
//! endpoints share.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use leasehold::client::TaskView;
use leasehold::model::{RetryPolicy, Task, Timestamp, Ttl, ValidationError};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoResponses, ToSchema};

use crate::api::lease;
pub(super) use crate::api::lease::{seconds as duration, ttl};
use crate::problem::{ApiResult, Problem};
use crate::server::App;

/// TTL of a lease if neither the request nor the server's settings set one.
const DEFAULT_TTL: Ttl = Ttl::from_secs(30);
pub(crate) const MAX_TASKS_PER_REQUEST: usize = 1000;

/// Returns the TTL of a lease: that of the request, or the default of the server.
pub(super) fn lease_ttl(app: &App, seconds: Option<f64>) -> ApiResult<Ttl> {
    let default = app.options.default_ttl.unwrap_or(DEFAULT_TTL);
    seconds.map_or(Ok(default), |seconds| lease::lease_ttl(app, seconds))
}

/// Checks a delay in seconds. Zero becomes the shortest possible delay.
pub(super) fn delay(field: &str, seconds: f64) -> ApiResult<Ttl> {
    let delay = duration(field, seconds)?.max(Ttl::MIN.as_duration());
    Ttl::new(delay).map_err(|error| Problem::invalid(error).at(field))
}

pub(super) fn time(field: &str, text: &str) -> ApiResult<Timestamp> {
    text.parse().map_err(|error: ValidationError| Problem::invalid(error).at(field))
}

/// Returns the retry policy of a request. Values that the request does not set keep those of `current`.
pub(super) fn retry_policy(
    attempts: Option<u32>,
    backoff: Option<f64>,
    current: RetryPolicy,
) -> ApiResult<RetryPolicy> {
    let initial_delay =
        backoff.map(|seconds| ttl("backoffSeconds", seconds)).transpose()?.unwrap_or(current.initial_delay);
    let max_delay = current.max_delay.max(initial_delay);
    Ok(RetryPolicy { attempts: attempts.unwrap_or(current.attempts), initial_delay, max_delay }.check()?)
}

pub(super) fn bounded<T>(field: &str, items: &[T]) -> ApiResult<()> {
    if items.len() > MAX_TASKS_PER_REQUEST {
        let reason = format!("{} items; must be at most {MAX_TASKS_PER_REQUEST} per request", items.len());
        return Err(Problem::invalid(reason).at(field));
    }
    Ok(())
}

/// Deserializes an optional field in which `null` is a value and does not mean absence.
pub(super) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

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

pub(super) fn task_reply(task: &Task) -> Response {
    let reply = TaskReply { success: true, task: TaskView::from(task) };
    with_etag(task, axum::Json(reply).into_response())
}

/// Adds the version of a task as the `ETag`, which clients send back as `If-Match`.
pub(super) fn with_etag(task: &Task, mut response: Response) -> Response {
    let tag = HeaderValue::from_str(&format!("\"{}\"", task.version));
    response.headers_mut().insert(header::ETAG, tag.expect("a quoted number is plain ASCII"));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn seconds_are_a_finite_number_within_bounds() {
        assert_eq!(duration("x", 0.0).unwrap(), Duration::ZERO);
        assert_eq!(ttl("x", 1.5).unwrap(), Ttl::from_millis(1500));
        assert_eq!(delay("x", 0.0).unwrap(), Ttl::MIN);
        for invalid in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(duration("x", invalid).is_err() && delay("x", invalid).is_err(), "{invalid}");
        }
        assert!(ttl("x", 0.0).is_err() && ttl("x", 1e12).is_err());
    }
}
