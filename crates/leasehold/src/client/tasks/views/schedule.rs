//! JSON view of a schedule and its next ticks.

use serde::Serialize;

use crate::model::{MisfirePolicy, Payload, Schedule, Timestamp};

/// A schedule.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScheduleView {
    /// Name of the schedule.
    pub name: String,
    /// Cron expression of the ticks.
    #[cfg_attr(feature = "openapi", schema(example = "0 3 * * *"))]
    pub cron: String,
    /// Time zone of the cron expression.
    #[cfg_attr(feature = "openapi", schema(example = "Europe/Berlin"))]
    pub zone: String,
    /// Queue that the tasks are added to.
    pub queue: String,
    /// Payload of the tasks: any JSON value.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Payload,
    /// Policy for ticks at which no process was running: add a task for `all` of them, for the
    /// `last`, or for `none`.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "all"))]
    pub missed: MisfirePolicy,
    /// Maximum delay of a task after its tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_seconds: Option<f64>,
    /// Priority of the tasks.
    pub priority: i32,
    /// Lock of the tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// Maximum number of attempts of each task.
    pub max_attempts: u32,
    /// Whether the schedule is paused: its ticks add no tasks.
    pub paused: bool,
    /// Next ticks; empty while the schedule is paused.
    #[cfg_attr(feature = "openapi", schema(example = json!(["2030-01-01T02:00:00Z"])))]
    pub next: Vec<String>,
}

impl ScheduleView {
    /// Creates the view with at most this many next ticks.
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
