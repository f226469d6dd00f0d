//! JSON views of tasks, queues, workers and schedules: names in camelCase, times in RFC 3339, a
//! payload as its JSON value. The binary and the server write the same views.

mod queue;
mod schedule;
mod task;
mod worker;

pub use queue::{PauseView, QueueView, RetentionView};
pub use schedule::ScheduleView;
pub use task::{CancelView, ProgressView, TaskEventView, TaskView};
pub use worker::WorkerView;
