//! Tasks: adding them, working on them, looking after them.
//!
//! | file | idea |
//! |---|---|
//! | `work.rs` | typed tasks: what they are about, and how a handler's result ends an attempt |
//! | `enqueue.rs` | adding tasks |
//! | `desk.rs` | looking at tasks and queues, and stepping in by hand |
//! | `remote.rs` | leases without a worker of this library: for those who work elsewhere |
//! | `retention.rs` | how long finished tasks are kept, and forgetting them |
//! | `caretaker.rs` | upkeep where no worker of this library runs |
//! | `views/` | all of that as JSON |
//! | `running.rs` | a task as its handler sees it |
//! | `worker.rs` | a worker: its settings, its start, its end |
//! | `floor.rs` | what a worker has in hand: leases, deadlines, who is to stop |
//! | `attempt.rs` | one attempt: its lock, its handler, how it has to stop |
//! | `foreman.rs` | taking tasks and starting handlers |
//! | `settler.rs` | telling the store how attempts ended, many at once |
//! | `pulse.rs` | signs of life, on a thread that handlers cannot starve |
//! | `upkeep.rs` | what any worker does for all: recovery, schedules, forgetting |

mod attempt;
mod caretaker;
mod desk;
mod enqueue;
mod floor;
mod foreman;
mod pulse;
mod remote;
mod retention;
mod running;
mod settler;
mod slots;
mod upkeep;
mod views;
mod work;
mod worker;

pub use caretaker::Caretaker;
pub use desk::Tasks;
pub use enqueue::{Added, EnqueueBuilder};
pub(super) use enqueue::{enqueue, new_task};
pub(super) use foreman::Handler;
pub use running::Running;
pub use views::{
    CancelView, PauseView, ProgressView, QueueView, RetentionView, ScheduleView, TaskEventView, TaskView,
    WorkerView,
};
pub(super) use work::verdict;
pub use work::{Setback, Work};
pub use worker::{Worker, WorkerBuilder};
