//! Tasks, queues, workers and schedules over HTTP.

mod enqueue;
mod get;
mod heartbeat;
mod lease;
mod maintenance;
mod queues;
mod responses;
mod routes;
mod schedules;
mod settle;
mod update;
mod values;
mod workers;

pub(crate) use heartbeat::ProgressBody;
pub(super) use heartbeat::must_own;
pub(crate) use routes::routes;
pub(crate) use values::MAX_TASKS_PER_REQUEST;
