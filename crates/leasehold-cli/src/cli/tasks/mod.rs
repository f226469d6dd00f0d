//! `leasehold tasks …`, `queues …` and `workers`.

mod add;
mod commands;
mod update;
mod work;

pub(crate) use add::{AddArgs, PayloadSource, RetryOptions};
pub(crate) use commands::{ListTasksArgs, QueuesCommand, TasksCommand, WorkersCommand};
pub(crate) use update::{CancelArgs, PauseArgs, PurgeArgs, RetentionArgs, RetryArgs, UpdateArgs};
pub(crate) use work::{ProgressArgs, WorkArgs};
