//! Tasks, queues, workers and schedules over HTTP.

pub(crate) mod enqueue;
pub(crate) mod get;
pub(crate) mod lease;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod settle;
mod values;

pub(crate) use lease::ProgressBody;
pub(super) use lease::must_own;
pub(crate) use values::MAX_TASKS_PER_REQUEST;
