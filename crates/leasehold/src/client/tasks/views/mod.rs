//! Tasks, queues, workers and schedules as JSON: names in camelCase, times in RFC 3339, a payload as the value that it
//! is. The binary and the server write the same.
//!
//! | file | idea |
//! |---|---|
//! | `task.rs` | a task, and what happened to it |
//! | `queue.rs` | a queue with its counts |
//! | `worker.rs` | who works |
//! | `schedule.rs` | a schedule and its next ticks |

mod queue;
mod schedule;
mod task;
mod worker;

pub use queue::{PauseView, QueueView, RetentionView};
pub use schedule::ScheduleView;
pub use task::{CancelView, ProgressView, TaskEventView, TaskView};
pub use worker::WorkerView;
