//! Tasks: adding them, running them, administering them.

mod attempt;
mod caretaker;
mod context;
mod desk;
mod enqueue;
mod floor;
mod foreman;
mod pulse;
mod remote;
mod retention;
mod settler;
mod slots;
mod upkeep;
mod views;
mod work;
mod worker;

pub use caretaker::Caretaker;
pub use context::TaskContext;
pub use desk::Tasks;
pub use enqueue::{EnqueueBuilder, EnqueueResult};
pub(super) use enqueue::{enqueue, new_task};
pub(super) use foreman::Handler;
pub use views::{
    CancelView, PauseView, ProgressView, QueueView, RetentionView, ScheduleView, TaskEventView, TaskView,
    WorkerView,
};
pub(super) use work::verdict;
pub use work::{HandlerError, TaskType};
pub use worker::{Worker, WorkerBuilder};
