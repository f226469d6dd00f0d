//! Ending the attempt at one task.

use axum::extract::{Path, State};
use leasehold::model::{AttemptResult, Message, Payload, Settle, Settled, TaskId, Token};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::beat::{lost, must_own};
use super::problems::{Lost, Missing};
use super::values::{pause, task_id, wrong};
use crate::access::{Caller, Worker};
use crate::body::Json;
use crate::described::PauseSeconds;
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(complete))
        .routes(routes!(fail))
        .routes(routes!(release))
        .routes(routes!(abort))
}

/// The task is done.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CompleteTaskBody {
    /// The token of the lease.
    token: Token,
    /// What came of it: any JSON value of at most 1 MiB.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
}

/// The attempt failed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FailBody {
    /// The token of the lease.
    token: Token,
    /// Why; cut after 8 KiB.
    error: Option<String>,
    /// Try again after so long; after the task's own pause if not said.
    #[schema(value_type = Option<PauseSeconds>)]
    retry_in_seconds: Option<f64>,
    /// Trying again is no use.
    #[serde(default)]
    r#final: bool,
}

/// The worker has to let go.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReleaseBody {
    /// The token of the lease.
    token: Token,
    /// Not before so long from now; at once if not said.
    #[schema(value_type = Option<PauseSeconds>)]
    retry_in_seconds: Option<f64>,
}

/// The task was stopped.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AbortTaskBody {
    /// The token of the lease.
    token: Token,
}

/// It is settled.
#[derive(Serialize, ToSchema)]
struct SettleReply {
    /// Always true.
    success: bool,
    /// The task.
    id: TaskId,
    /// Where it stands now.
    #[schema(example = "succeeded")]
    state: &'static str,
}

/// The task is done. Sent again after a lost answer, it is answered as before.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/complete", tag = "tasks", operation_id = "completeTask",
    params(("id" = TaskId, Path, description = "The task")), request_body = CompleteTaskBody,
    responses((status = OK, body = SettleReply), Lost, Missing),
)]
async fn complete(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<CompleteTaskBody>,
) -> Answer<axum::Json<SettleReply>> {
    settle(&app, &caller, task_id(&id)?, body.token, AttemptResult::Done(body.result)).await
}

/// The attempt failed: it is tried again if attempts are left, unless that is no use.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/fail", tag = "tasks", operation_id = "failTask",
    params(("id" = TaskId, Path, description = "The task")), request_body = FailBody,
    responses((status = OK, body = SettleReply), Lost, Missing),
)]
async fn fail(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<FailBody>,
) -> Answer<axum::Json<SettleReply>> {
    let verdict = failed(body.error.as_deref(), body.retry_in_seconds, body.r#final)?;
    settle(&app, &caller, task_id(&id)?, body.token, verdict).await
}

/// Give the task back unfinished, for somebody else or for later. That counts as no attempt.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/release", tag = "tasks", operation_id = "releaseTask",
    params(("id" = TaskId, Path, description = "The task")), request_body = ReleaseBody,
    responses((status = OK, body = SettleReply), Lost, Missing),
)]
async fn release(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<ReleaseBody>,
) -> Answer<axum::Json<SettleReply>> {
    let verdict = released(body.retry_in_seconds)?;
    settle(&app, &caller, task_id(&id)?, body.token, verdict).await
}

/// The task was stopped because somebody wanted it, as the answer to a heartbeat said.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/abort", tag = "tasks", operation_id = "abortTask",
    params(("id" = TaskId, Path, description = "The task")), request_body = AbortTaskBody,
    responses((status = OK, body = SettleReply), Lost, Missing),
)]
async fn abort(
    State(app): State<App>,
    caller: Caller<Worker>,
    Path(id): Path<String>,
    Json(body): Json<AbortTaskBody>,
) -> Answer<axum::Json<SettleReply>> {
    settle(&app, &caller, task_id(&id)?, body.token, AttemptResult::Abort(None)).await
}

async fn settle(
    app: &App,
    caller: &Caller<Worker>,
    id: TaskId,
    token: Token,
    verdict: AttemptResult,
) -> Answer<axum::Json<SettleReply>> {
    let tasks = app.leasehold().tasks()?;
    must_own(app, caller, [(id, token)]).await?;
    match tasks.settle(&[Settle { id, token, verdict }]).await?.pop() {
        Some(Settled::Now(state)) => Ok(axum::Json(SettleReply { success: true, id, state: state.word() })),
        _ => Err(lost(&tasks, id).await.into()),
    }
}

/// How an attempt that failed ends.
pub(super) fn failed(why: Option<&str>, retry_in: Option<f64>, last: bool) -> Answer<AttemptResult> {
    let why = Message::new(why.unwrap_or("the worker did not say why"));
    match retry_in {
        Some(_) if last => Err(wrong("retryInSeconds", "it is final; give one of them")),
        Some(seconds) => Ok(AttemptResult::Retry(why, Some(pause("retryInSeconds", seconds)?))),
        None if last => Ok(AttemptResult::Fail(why)),
        None => Ok(AttemptResult::Retry(why, None)),
    }
}

/// How an attempt ends that is for somebody else or for later.
pub(super) fn released(retry_in: Option<f64>) -> Answer<AttemptResult> {
    match retry_in {
        Some(seconds) => Ok(AttemptResult::Snooze(pause("retryInSeconds", seconds)?)),
        None => Ok(AttemptResult::Return),
    }
}
