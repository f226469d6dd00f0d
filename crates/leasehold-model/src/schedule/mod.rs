//! Schedules: when a task is due, and the ticks of its expression.

pub(crate) mod definition;
mod ticks;

pub use definition::{CronExpression, MisfirePolicy, Schedule, TimeZoneName};
