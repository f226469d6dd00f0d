//! `leasehold tasks …`, `queues …` and `workers`.
//!
//! | file | commands |
//! |---|---|
//! | `group.rs` | the commands of each group |
//! | `add.rs` | `tasks add` |
//! | `look.rs` | `tasks list`, `tasks show`, `tasks counts` |
//! | `change.rs` | `tasks retry`, `cancel`, `update`, `purge`, `queues pause` |
//! | `work.rs` | `tasks work`, `tasks progress` |

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
