//! Schedules: recurring tasks.

use axum::extract::Path;
use leasehold::client::ScheduleView;
use leasehold::model::{
    CronExpression, LockName, MisfirePolicy, Payload, Priority, QueueName, RetryPolicy, Schedule,
    ScheduleName, TimeZoneName,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::values::{NotFound, Success, duration, retry_policy};
use crate::access::{Caller, Operator, Reader};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{Attempts, PositiveSeconds};
use crate::problem::{Problem, Reply};
use crate::request::body::{Json, Query};
use crate::server::App;
use crate::webhooks::must_not_claim_a_webhook;

const DEFAULT_TICKS: usize = 5;
const MAX_TICKS: usize = 1000;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, set, remove))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// List of schedules.
#[derive(Serialize, ToSchema)]
struct ScheduleList {
    /// Schedules, sorted by name, each with its next tick.
    schedules: Vec<ScheduleView>,
}

/// Schedule after a change.
#[derive(Serialize, ToSchema)]
struct ScheduleReply {
    /// Always true.
    success: bool,
    /// Schedule after the change.
    schedule: ScheduleView,
}

/// Definition of a schedule.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScheduleBody {
    /// Cron expression: five fields (minute, hour, day of month, month, day of week), six fields
    /// with seconds first, or one of `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
    #[schema(value_type = CronExpression, example = "0 3 * * *")]
    cron: String,
    /// Time zone of the cron expression. Default: UTC.
    #[schema(value_type = Option<TimeZoneName>, example = "Europe/Berlin")]
    zone: Option<String>,
    /// Queue of the tasks.
    #[schema(value_type = QueueName)]
    queue: String,
    /// Payload of the tasks: any JSON value of at most 1 MiB. Default: `null`.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Payload,
    /// Handling of ticks that were missed because no server or worker was running: a task for `all`
    /// of them, for the `last`, or for `none`. Default: `all`.
    #[serde(default)]
    missed: MisfirePolicy,
    /// Maximum delay of a task after its tick in seconds, at most 86400. The delay of a tick is
    /// derived from a hash of the name and the tick. Default: no delay.
    #[schema(minimum = 0.001, maximum = 86_400, example = 30.0)]
    jitter_seconds: Option<f64>,
    /// Priority of the tasks, -1000 to 1000. Default: 0.
    #[schema(value_type = Option<Priority>)]
    priority: Option<i32>,
    /// Lock that a worker must hold while it runs a task of this schedule.
    #[schema(value_type = Option<LockName>)]
    lock: Option<String>,
    /// Maximum number of attempts of each task, 1 to 1000. Default: 5.
    #[schema(value_type = Option<Attempts>)]
    max_attempts: Option<u32>,
    /// Delay in seconds after the first failed attempt of a task. Default: 1.
    #[schema(value_type = Option<PositiveSeconds>)]
    backoff_seconds: Option<f64>,
    /// Maximum run time in seconds of one attempt at a task. Default: unlimited.
    #[schema(value_type = Option<PositiveSeconds>)]
    timeout_seconds: Option<f64>,
}

/// Query for a schedule.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ScheduleQuery {
    /// Number of next ticks, at most 1000. Default: 5.
    #[param(minimum = 0, maximum = 1000)]
    next: Option<usize>,
}

/// Lists the schedules, each with its next tick.
#[utoipa::path(
    get, path = "/api/v1/schedules", tag = "tasks", operation_id = "listSchedules",
    responses((status = OK, body = ScheduleList)),
)]
async fn list(app: App, _: Caller<Reader>) -> Reply<ScheduleList> {
    let schedules = app.leasehold.schedules()?.list().await?;
    let now = app.leasehold.now().await?;
    let schedules = schedules.iter().map(|schedule| ScheduleView::new(schedule, now, 1)).collect();
    Ok(axum::Json(ScheduleList { schedules }))
}

/// Returns a schedule with its next ticks.
#[utoipa::path(
    get, path = "/api/v1/schedules/{name}", tag = "tasks", operation_id = "getSchedule",
    params(("name" = ScheduleName, Path, description = "Name of the schedule; encode '/' as %2F"), ScheduleQuery),
    responses((status = OK, body = ScheduleView), NotFound),
)]
async fn get(
    app: App,
    _: Caller<Reader>,
    Path(name): Path<String>,
    Query(query): Query<ScheduleQuery>,
) -> Reply<ScheduleView> {
    let next = query.next.unwrap_or(DEFAULT_TICKS);
    if next > MAX_TICKS {
        let reason = format!("invalid value {next}: must be at most {MAX_TICKS}");
        return Err(Problem::invalid(reason).at("next"));
    }
    let schedule = app.leasehold.schedules()?.get(&ScheduleName::new(name)?).await?;
    Ok(axum::Json(ScheduleView::new(&schedule, app.leasehold.now().await?, next)))
}

/// Creates or replaces a schedule.
///
/// The schedule enqueues one task per tick, independent of the number of servers and workers.
#[utoipa::path(
    put, path = "/api/v1/schedules/{name}", tag = "tasks", operation_id = "setSchedule",
    params(("name" = ScheduleName, Path, description = "Name of the schedule; encode '/' as %2F")),
    request_body = ScheduleBody,
    responses((status = OK, body = ScheduleReply)),
)]
async fn set(
    app: App,
    _: Caller<Operator>,
    Path(name): Path<String>,
    Json(body): Json<ScheduleBody>,
) -> Reply<ScheduleReply> {
    let retries = retry_policy(body.max_attempts, body.backoff_seconds, RetryPolicy::default())?;
    must_not_claim_a_webhook(&QueueName::new(&body.queue)?, &body.payload)?;
    let mut schedule = app.leasehold.schedule_to(&name, &body.cron, body.queue, body.payload);
    schedule = schedule.missed(body.missed).retries(retries);
    if let Some(zone) = body.zone {
        schedule = schedule.zone(&zone);
    }
    if let Some(jitter) = body.jitter_seconds {
        schedule = schedule.jitter(duration("jitterSeconds", jitter)?);
    }
    if let Some(timeout) = body.timeout_seconds {
        schedule = schedule.timeout(duration("timeoutSeconds", timeout)?);
    }
    if let Some(priority) = body.priority {
        schedule = schedule.priority(priority);
    }
    if let Some(lock) = body.lock {
        schedule = schedule.lock(LockName::new(lock)?);
    }
    reply(&app, &schedule.await?).await
}

/// Removes a schedule.
///
/// Tasks that it has enqueued remain.
#[utoipa::path(
    delete, path = "/api/v1/schedules/{name}", tag = "tasks", operation_id = "removeSchedule",
    params(("name" = ScheduleName, Path, description = "Name of the schedule; encode '/' as %2F")),
    responses((status = OK, body = Success), NotFound),
)]
async fn remove(app: App, _: Caller<Operator>, Path(name): Path<String>) -> Reply<Success> {
    app.leasehold.schedules()?.remove(&ScheduleName::new(name)?).await?;
    Ok(Success::json())
}

/// Pauses a schedule.
///
/// Ticks until it is resumed are skipped.
#[utoipa::path(
    post, path = "/api/v1/schedules/{name}/pause", tag = "tasks", operation_id = "pauseSchedule",
    params(("name" = ScheduleName, Path, description = "Name of the schedule; encode '/' as %2F")),
    responses((status = OK, body = ScheduleReply), NotFound),
)]
async fn pause(app: App, _: Caller<Operator>, Path(name): Path<String>) -> Reply<ScheduleReply> {
    let schedule = app.leasehold.schedules()?.pause(&ScheduleName::new(name)?).await?;
    reply(&app, &schedule).await
}

/// Resumes a schedule from now on.
#[utoipa::path(
    post, path = "/api/v1/schedules/{name}/resume", tag = "tasks", operation_id = "resumeSchedule",
    params(("name" = ScheduleName, Path, description = "Name of the schedule; encode '/' as %2F")),
    responses((status = OK, body = ScheduleReply), NotFound),
)]
async fn resume(app: App, _: Caller<Operator>, Path(name): Path<String>) -> Reply<ScheduleReply> {
    let schedule = app.leasehold.schedules()?.resume(&ScheduleName::new(name)?).await?;
    reply(&app, &schedule).await
}

async fn reply(app: &App, schedule: &Schedule) -> Reply<ScheduleReply> {
    let now = app.leasehold.now().await?;
    Ok(axum::Json(ScheduleReply { success: true, schedule: ScheduleView::new(schedule, now, DEFAULT_TICKS) }))
}
