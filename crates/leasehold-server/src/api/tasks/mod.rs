//! Tasks, queues, workers and schedules over HTTP.

mod enqueue;
mod get;
mod lease;
mod queues;
mod routes;
mod schedules;
mod settle;
mod values;
mod workers;

pub(crate) use lease::ProgressBody;
pub(super) use lease::must_own;
pub(crate) use routes::routes;
pub(crate) use values::MAX_TASKS_PER_REQUEST;
