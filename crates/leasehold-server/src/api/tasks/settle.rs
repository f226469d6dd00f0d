//! Reports the results of attempts, for one task or many per request.

use axum::extract::Path;
use leasehold::model::{AttemptResult, Message, Payload, Settle, Settled, TaskId, Token};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::lease::{lease_error, must_own};
use super::values::{LeaseLost, NotFound, bounded, delay};
use crate::access::{Caller, Worker};
use crate::openapi::roles::routes;
use crate::openapi::schemas::DelaySeconds;
use crate::problem::{ApiResult, Problem, Reply};
use crate::request::body::Json;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(complete))
        .routes(routes!(fail))
        .routes(routes!(release))
        .routes(routes!(abort))
        .routes(routes!(settle_many))
}

/// Completed task.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CompleteTaskBody {
    /// Fencing token of the lease.
    token: Token,
    /// Result of the task: any JSON value of at most 1 MiB.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
}

/// Failed attempt.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FailBody {
    /// Fencing token of the lease.
    token: Token,
    /// Error message; truncated to 8 KiB.
    error: Option<String>,
    /// Delay in seconds before the next attempt. Default: the backoff of the task.
    #[schema(value_type = Option<DelaySeconds>)]
    retry_in_seconds: Option<f64>,
    /// Whether the task fails without further attempts.
    #[serde(default)]
    r#final: bool,
}

/// Returned task.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReleaseBody {
    /// Fencing token of the lease.
    token: Token,
    /// Delay in seconds before the task may be leased again. Default: 0.
    #[schema(value_type = Option<DelaySeconds>)]
    retry_in_seconds: Option<f64>,
}

/// Aborted task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AbortTaskBody {
    /// Fencing token of the lease.
    token: Token,
}

/// Result of reporting an attempt.
#[derive(Serialize, ToSchema)]
struct SettleReply {
    /// Always true.
    success: bool,
    /// Id of the task.
    id: TaskId,
    /// State of the task.
    #[schema(example = "succeeded")]
    state: &'static str,
}

/// Completes a task.
///
/// A repeated request after a lost response returns the same result.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/complete", tag = "tasks", operation_id = "completeTask",
    params(("id" = TaskId, Path, description = "Id of the task")), request_body = CompleteTaskBody,
    responses((status = OK, body = SettleReply), LeaseLost, NotFound),
)]
async fn complete(
    app: App,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<CompleteTaskBody>,
) -> Reply<SettleReply> {
    settle(&app, &caller, &id, body.token, AttemptResult::Done(body.result)).await
}

/// Reports a failed attempt.
///
/// The task is retried if it has attempts left and `final` is not set.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/fail", tag = "tasks", operation_id = "failTask",
    params(("id" = TaskId, Path, description = "Id of the task")), request_body = FailBody,
    responses((status = OK, body = SettleReply), LeaseLost, NotFound),
)]
async fn fail(
    app: App,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<FailBody>,
) -> Reply<SettleReply> {
    let result = failed(body.error.as_deref(), body.retry_in_seconds, body.r#final)?;
    settle(&app, &caller, &id, body.token, result).await
}

/// Returns an unfinished task to its queue.
///
/// This does not count as an attempt.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/release", tag = "tasks", operation_id = "releaseTask",
    params(("id" = TaskId, Path, description = "Id of the task")), request_body = ReleaseBody,
    responses((status = OK, body = SettleReply), LeaseLost, NotFound),
)]
async fn release(
    app: App,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<ReleaseBody>,
) -> Reply<SettleReply> {
    let result = released(body.retry_in_seconds)?;
    settle(&app, &caller, &id, body.token, result).await
}

/// Reports that the worker has stopped a task because the response to a heartbeat requested it.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/abort", tag = "tasks", operation_id = "abortTask",
    params(("id" = TaskId, Path, description = "Id of the task")), request_body = AbortTaskBody,
    responses((status = OK, body = SettleReply), LeaseLost, NotFound),
)]
async fn abort(
    app: App,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<AbortTaskBody>,
) -> Reply<SettleReply> {
    settle(&app, &caller, &id, body.token, AttemptResult::Abort(None)).await
}

async fn settle(
    app: &App,
    caller: &Caller<Worker>,
    id: &str,
    mut token: Token,
    verdict: AttemptResult,
) -> Reply<SettleReply> {
    let (id, tasks) = (id.parse()?, app.leasehold.tasks()?);
    must_own(app, caller, vec![(id, &mut token)]).await?;
    let ends = [Settle { id, token, result: verdict }];
    let mut settled = tasks.settle(&ends).await?;
    app.task_owners.remove_settled(&ends, &settled);
    match settled.pop() {
        Some(Settled::Now(state)) => Ok(axum::Json(SettleReply { success: true, id, state: state.as_str() })),
        _ => Err(lease_error(&tasks, id).await.into()),
    }
}

fn failed(error: Option<&str>, retry_in: Option<f64>, is_final: bool) -> ApiResult<AttemptResult> {
    let error = Message::new(error.unwrap_or("the worker reported no error message"));
    match retry_in {
        Some(_) if is_final => Err(Problem::invalid("must not be combined with final").at("retryInSeconds")),
        Some(seconds) => Ok(AttemptResult::Retry(error, Some(delay("retryInSeconds", seconds)?))),
        None if is_final => Ok(AttemptResult::Fail(error)),
        None => Ok(AttemptResult::Retry(error, None)),
    }
}

fn released(retry_in: Option<f64>) -> ApiResult<AttemptResult> {
    let delay = retry_in.map(|seconds| delay("retryInSeconds", seconds)).transpose()?;
    Ok(delay.map_or(AttemptResult::Return, AttemptResult::Snooze))
}

/// Results of several attempts.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SettleTasksBody {
    /// At most 1000 results, each task at most once.
    #[schema(max_items = 1000)]
    tasks: Vec<SettleItem>,
}

/// Result of one attempt.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SettleItem {
    /// Id of the task.
    id: TaskId,
    /// Fencing token of the lease.
    token: Token,
    /// Outcome of the attempt.
    outcome: SettleOutcome,
    /// With `complete`: result of the task, any JSON value of at most 1 MiB.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
    /// With `fail`: error message.
    error: Option<String>,
    /// With `fail` and `release`: delay in seconds before the next attempt.
    #[schema(value_type = Option<DelaySeconds>)]
    retry_in_seconds: Option<f64>,
    /// With `fail`: whether the task fails without further attempts.
    #[serde(default)]
    r#final: bool,
}

/// Outcome of an attempt, as in the endpoints of the same names.
#[derive(Deserialize, ToSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum SettleOutcome {
    /// The task is complete.
    Complete,
    /// The attempt failed.
    Fail,
    /// The task is returned to its queue.
    Release,
    /// The worker stopped the task because it was requested.
    Abort,
}

/// Response to several results.
#[derive(Serialize, ToSchema)]
struct SettleTasksReply {
    /// Always true.
    success: bool,
    /// Results in the order of the request.
    tasks: Vec<SettledItem>,
}

/// Response to one result.
#[derive(Serialize, ToSchema)]
struct SettledItem {
    /// Id of the task.
    id: TaskId,
    /// Whether the result was recorded. If not, the lease was lost and nothing was changed.
    settled: bool,
    /// State of the task; absent if the lease was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "succeeded")]
    state: Option<&'static str>,
}

/// Reports the results of several attempts.
///
/// Results of lost leases are ignored and marked in the response.
#[utoipa::path(
    post, path = "/api/v1/tasks/settle", tag = "tasks", operation_id = "settleTasks",
    request_body = SettleTasksBody,
    responses((status = OK, description = "Recorded results; also returned if some leases are lost", body = SettleTasksReply)),
)]
async fn settle_many(
    app: App,
    caller: Caller<Worker>,
    Json(body): Json<SettleTasksBody>,
) -> Reply<SettleTasksReply> {
    bounded("tasks", &body.tasks)?;
    let mut ended = body.tasks.into_iter().map(SettleItem::into_settle).collect::<ApiResult<Vec<_>>>()?;
    let leases = ended.iter_mut().map(|end| (end.id, &mut end.token)).collect();
    must_own(&app, &caller, leases).await?;
    let settled = app.leasehold.tasks()?.settle(&ended).await?;
    app.task_owners.remove_settled(&ended, &settled);
    let item = |(ended, settled): (&Settle, &Settled)| match settled {
        Settled::Now(state) => SettledItem { id: ended.id, settled: true, state: Some(state.as_str()) },
        Settled::Lost | Settled::Busy => SettledItem { id: ended.id, settled: false, state: None },
    };
    Ok(axum::Json(SettleTasksReply { success: true, tasks: ended.iter().zip(&settled).map(item).collect() }))
}

impl SettleItem {
    fn into_settle(self) -> ApiResult<Settle> {
        let Self { id, token, outcome, result, error, retry_in_seconds, r#final } = self;
        let has_extra_field = match outcome {
            SettleOutcome::Complete => retry_in_seconds.is_some() || error.is_some() || r#final,
            SettleOutcome::Fail => result.is_some(),
            SettleOutcome::Release => result.is_some() || error.is_some() || r#final,
            SettleOutcome::Abort => {
                retry_in_seconds.is_some() || result.is_some() || error.is_some() || r#final
            }
        };
        if has_extra_field {
            let reason = format!("task {id} has fields that are not allowed for this outcome");
            return Err(Problem::invalid(reason).at("outcome"));
        }
        let verdict = match outcome {
            SettleOutcome::Complete => AttemptResult::Done(result),
            SettleOutcome::Fail => failed(error.as_deref(), retry_in_seconds, r#final)?,
            SettleOutcome::Release => released(retry_in_seconds)?,
            SettleOutcome::Abort => AttemptResult::Abort(None),
        };
        Ok(Settle { id, token, result: verdict })
    }
}
