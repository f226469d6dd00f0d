//! `leasehold tasks …`, `queues …` and `workers`.

mod add;
mod change;
mod group;
mod look;
mod work;

pub(crate) use add::{AddArgs, Source, Steps};
pub(crate) use change::{CancelArgs, PauseArgs, PurgeArgs, RetentionArgs, RetryArgs, UpdateArgs};
pub(crate) use group::{QueuesCommand, TasksCommand, WorkersCommand};
pub(crate) use look::ListTasksArgs;
pub(crate) use work::{ProgressArgs, WorkArgs};
