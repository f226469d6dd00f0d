//! Tasks: adding them, running them, administering them.

mod admin;
mod enqueue;
mod feed;
mod history;
mod output;
mod retention;
mod task_type;
mod views;
mod why;
mod worker;

pub use admin::Tasks;
pub use enqueue::{EnqueueBuilder, EnqueueResult};
pub(super) use enqueue::{enqueue, new_task};
pub use feed::{FeedNotice, TaskFeed, TaskFeedItem};
pub use history::TaskHistoryView;
pub use output::{AttemptOutput, OutputLine, OutputRecorder, OutputStream};
pub(super) use retention::{RetentionPurge, store_retention};
pub use task_type::{HandlerError, TaskType};
#[cfg(feature = "schedules")]
pub use views::ScheduleView;
pub use views::{
    CancelView, PauseView, ProgressView, QueueView, RetentionView, TaskEventView, TaskView, WorkerView,
};
pub use why::{TaskExplanation, TaskExplanationView, TaskReasonView};
pub use worker::{TaskContext, Worker, WorkerBuilder};
