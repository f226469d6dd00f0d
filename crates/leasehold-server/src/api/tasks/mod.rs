//! Tasks, queues, workers and schedules over HTTP.

mod add;
mod beat;
mod change;
mod lease;
mod look;
mod problems;
mod queues;
mod replies;
mod routes;
mod schedules;
mod settle;
mod settle_many;
mod tidy;
mod values;
mod workers;

pub(crate) use beat::ProgressBody;
pub(super) use beat::must_own;
pub(crate) use routes::routes;
pub(crate) use values::MOST;
