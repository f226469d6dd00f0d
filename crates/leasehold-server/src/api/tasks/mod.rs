//! Tasks, queues, workers and schedules over HTTP.
//!
//! | file | idea |
//! |---|---|
//! | `routes.rs` | all of them together |
//! | `values.rs` | seconds, times and ids as requests have them |
//! | `problems.rs` | what any of these requests may come to |
//! | `replies.rs` | what several of them answer |
//! | `add.rs` | adding tasks |
//! | `lease.rs` | taking tasks, and waiting for some |
//! | `beat.rs` | signs of life |
//! | `settle.rs`, `settle_many.rs` | ending attempts, one or many |
//! | `look.rs` | one task, and lists of them |
//! | `change.rs` | stepping in: update, retry, cancel |
//! | `queues.rs` | queues, and pausing them |
//! | `workers.rs` | who works, and what a worker elsewhere says about itself |
//! | `schedules.rs` | tasks that come again and again |
//! | `tidy.rs` | recovery and purge |

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
