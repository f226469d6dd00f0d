//! A schedule and its next ticks, as JSON.

use serde::Serialize;

use crate::model::{Missed, Payload, Schedule, Timestamp};

/// One schedule.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScheduleView {
    /// Its name.
    pub name: String,
    /// When: a cron expression…
    #[cfg_attr(feature = "openapi", schema(example = "0 3 * * *"))]
    pub cron: String,
    /// …in this time zone.
    #[cfg_attr(feature = "openapi", schema(example = "Europe/Berlin"))]
    pub zone: String,
    /// Where its tasks go.
    pub queue: String,
    /// What they are about: any JSON value.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Payload,
    /// Ticks at which nobody was there: a task for `all` of them, for the `last`, or for `none`.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "all"))]
    pub missed: Missed,
    /// Each task runs up to this long after its tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_seconds: Option<f64>,
    /// The weight of its tasks.
    pub priority: i32,
    /// Their lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// How often each of its tasks is tried.
    pub max_attempts: u32,
    /// No tick counts for now.
    pub paused: bool,
    /// The next ticks; none while it is paused.
    #[cfg_attr(feature = "openapi", schema(example = json!(["2030-01-01T02:00:00Z"])))]
    pub next: Vec<String>,
}

impl ScheduleView {
    /// With so many ticks ahead.
    pub fn new(schedule: &Schedule, now: Timestamp, next: usize) -> Self {
        Self {
            name: schedule.name.to_string(),
            cron: schedule.cron.to_string(),
            zone: schedule.zone.to_string(),
            queue: schedule.queue.to_string(),
            payload: schedule.payload.clone(),
            missed: schedule.missed,
            jitter_seconds: schedule.jitter.map(|jitter| jitter.as_duration().as_secs_f64()),
            priority: schedule.priority.get(),
            lock: schedule.lock.as_ref().map(ToString::to_string),
            max_attempts: schedule.retries.attempts,
            paused: schedule.paused,
            next: schedule.ahead(now, next).iter().map(ToString::to_string).collect(),
        }
    }
}
