//! Tasks that come again and again.

use axum::extract::{Path, State};
use leasehold::client::ScheduleView;
use leasehold::model::{
    CronExpression, LockName, MisfirePolicy, Payload, Priority, QueueName, RetryPolicy, Schedule,
    ScheduleName, TimeZoneName,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::problems::Missing;
use super::replies::Success;
use super::values::{duration, retries, wrong};
use crate::access::{Caller, Operator, Reader};
use crate::body::{Json, Query};
use crate::described::{Attempts, SomeSeconds};
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;
use crate::webhooks::must_not_claim_a_webhook;

/// So many ticks ahead are shown if nobody says.
const AHEAD: usize = 5;
/// The most.
const MOST_AHEAD: usize = 1000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, set, remove))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// The schedules.
#[derive(Serialize, ToSchema)]
struct ScheduleList {
    /// By name, each with its next tick.
    schedules: Vec<ScheduleView>,
}

/// It is done, and the schedule is now like this.
#[derive(Serialize, ToSchema)]
struct ScheduleReply {
    /// Always true.
    success: bool,
    /// The schedule as it is now.
    schedule: ScheduleView,
}

/// What a schedule is to be.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScheduleBody {
    /// When: five fields (minute, hour, day of month, month, day of week), or six with seconds before them, or one of @hourly,
    /// @daily, @weekly, @monthly, @yearly.
    #[schema(value_type = CronExpression, example = "0 3 * * *")]
    cron: String,
    /// The time zone of that; UTC if not said.
    #[schema(value_type = Option<TimeZoneName>, example = "Europe/Berlin")]
    zone: Option<String>,
    /// Where its tasks go.
    #[schema(value_type = QueueName)]
    queue: String,
    /// What they are about: any JSON value of at most 1 MiB; null if not said.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Payload,
    /// Ticks at which nobody was there: a task for `all` of them, for the `last`, or for `none`; all if not said.
    #[serde(default)]
    missed: MisfirePolicy,
    /// Each task runs up to this long after its tick, by a hash of the name and the tick; 86400 at most, none by default.
    #[schema(minimum = 0.001, maximum = 86_400, example = 30.0)]
    jitter_seconds: Option<f64>,
    /// The weight of its tasks, -1000 to 1000.
    #[schema(value_type = Option<Priority>)]
    priority: Option<i32>,
    /// Its tasks run only while their worker holds this lock.
    #[schema(value_type = Option<LockName>)]
    lock: Option<String>,
    /// How often each is tried, 1 to 1000; 5 if not said.
    #[schema(value_type = Option<Attempts>)]
    max_attempts: Option<u32>,
    /// The pause after the first failed attempt of one; 1 if not said.
    #[schema(value_type = Option<SomeSeconds>)]
    backoff_seconds: Option<f64>,
}

/// How much to show.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Ahead {
    /// So many ticks ahead, at most 1000; 5 if not said.
    #[param(minimum = 0, maximum = 1000)]
    next: Option<usize>,
}

/// The schedules, each with its next tick.
#[utoipa::path(
    get, path = "/api/v1/schedules", tag = "tasks", operation_id = "listSchedules",
    responses((status = OK, body = ScheduleList)),
)]
async fn list(State(app): State<App>, _: Caller<Reader>) -> Answer<axum::Json<ScheduleList>> {
    let schedules = app.leasehold().schedules()?.list().await?;
    let now = app.leasehold().now().await?;
    let schedules = schedules.iter().map(|schedule| ScheduleView::new(schedule, now, 1)).collect();
    Ok(axum::Json(ScheduleList { schedules }))
}

/// A schedule, with its next ticks.
#[utoipa::path(
    get, path = "/api/v1/schedules/{name}", tag = "tasks", operation_id = "getSchedule",
    params(("name" = ScheduleName, Path, description = "The schedule; a '/' is written %2F"), Ahead),
    responses((status = OK, body = ScheduleView), Missing),
)]
async fn get(
    State(app): State<App>,
    _: Caller<Reader>,
    Path(name): Path<String>,
    Query(ahead): Query<Ahead>,
) -> Answer<axum::Json<ScheduleView>> {
    let next = ahead.next.unwrap_or(AHEAD);
    if next > MOST_AHEAD {
        return Err(wrong("next", format!("{next} is too many; {MOST_AHEAD} is the most")));
    }
    let schedule = app.leasehold().schedules()?.get(&ScheduleName::new(name)?).await?;
    Ok(axum::Json(ScheduleView::new(&schedule, app.leasehold().now().await?, next)))
}

/// Set a schedule: a task for each tick, once, however many servers and workers there are. One with the same name is replaced.
#[utoipa::path(
    put, path = "/api/v1/schedules/{name}", tag = "tasks", operation_id = "setSchedule",
    params(("name" = ScheduleName, Path, description = "The schedule; a '/' is written %2F")),
    request_body = ScheduleBody,
    responses((status = OK, body = ScheduleReply)),
)]
async fn set(
    State(app): State<App>,
    _: Caller<Operator>,
    Path(name): Path<String>,
    Json(body): Json<ScheduleBody>,
) -> Answer<axum::Json<ScheduleReply>> {
    let retries = retries(body.max_attempts, body.backoff_seconds, RetryPolicy::default())?;
    let leasehold = app.leasehold();
    must_not_claim_a_webhook(&QueueName::new(&body.queue)?, &body.payload)?;
    let mut schedule = leasehold.schedule_to(&name, &body.cron, body.queue, body.payload);
    schedule = schedule.missed(body.missed).retries(retries);
    if let Some(zone) = body.zone {
        schedule = schedule.zone(&zone);
    }
    if let Some(jitter) = body.jitter_seconds {
        schedule = schedule.jitter(duration("jitterSeconds", jitter)?);
    }
    if let Some(weight) = body.priority {
        schedule = schedule.priority(weight);
    }
    if let Some(lock) = body.lock {
        schedule = schedule.lock(LockName::new(lock)?);
    }
    reply(&app, &schedule.await?).await
}

/// Remove a schedule. The tasks that it has made stay.
#[utoipa::path(
    delete, path = "/api/v1/schedules/{name}", tag = "tasks", operation_id = "removeSchedule",
    params(("name" = ScheduleName, Path, description = "The schedule; a '/' is written %2F")),
    responses((status = OK, body = Success), Missing),
)]
async fn remove(
    State(app): State<App>,
    _: Caller<Operator>,
    Path(name): Path<String>,
) -> Answer<axum::Json<Success>> {
    app.leasehold().schedules()?.remove(&ScheduleName::new(name)?).await?;
    Ok(Success::json())
}

/// Let no tick count until it is resumed. Those in between are not made up for.
#[utoipa::path(
    post, path = "/api/v1/schedules/{name}/pause", tag = "tasks", operation_id = "pauseSchedule",
    params(("name" = ScheduleName, Path, description = "The schedule; a '/' is written %2F")),
    responses((status = OK, body = ScheduleReply), Missing),
)]
async fn pause(
    State(app): State<App>,
    _: Caller<Operator>,
    Path(name): Path<String>,
) -> Answer<axum::Json<ScheduleReply>> {
    let schedule = app.leasehold().schedules()?.pause(&ScheduleName::new(name)?).await?;
    reply(&app, &schedule).await
}

/// Let ticks count again, from now on.
#[utoipa::path(
    post, path = "/api/v1/schedules/{name}/resume", tag = "tasks", operation_id = "resumeSchedule",
    params(("name" = ScheduleName, Path, description = "The schedule; a '/' is written %2F")),
    responses((status = OK, body = ScheduleReply), Missing),
)]
async fn resume(
    State(app): State<App>,
    _: Caller<Operator>,
    Path(name): Path<String>,
) -> Answer<axum::Json<ScheduleReply>> {
    let schedule = app.leasehold().schedules()?.resume(&ScheduleName::new(name)?).await?;
    reply(&app, &schedule).await
}

async fn reply(app: &App, schedule: &Schedule) -> Answer<axum::Json<ScheduleReply>> {
    let now = app.leasehold().now().await?;
    Ok(axum::Json(ScheduleReply { success: true, schedule: ScheduleView::new(schedule, now, AHEAD) }))
}
