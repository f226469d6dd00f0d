//! Tasks, queues and workers.
//!
//! | file | commands |
//! |---|---|
//! | `dispatch.rs` | from a command of these groups to what is done |
//! | `add.rs`, `lines.rs`, `payload.rs` | `tasks add`, of one or of many, and where payloads come from |
//! | `look.rs` | `tasks list`, `tasks show`, `tasks counts`, `queues list`, `workers` |
//! | `change.rs`, `update.rs` | `tasks retry`, `tasks cancel`, `tasks update`, `queues pause`, `queues resume` |
//! | `retention.rs` | `queues retention` |
//! | `tidy.rs` | `tasks recover`, `tasks purge` |
//! | `progress.rs` | `tasks progress` |
//! | `work.rs` | `tasks work`, up to the plan that `crate::work` carries out |

mod add;
mod change;
mod dispatch;
mod lines;
mod look;
mod payload;
mod progress;
mod retention;
mod tidy;
mod update;
mod work;

pub(super) use dispatch::{queues, tasks};
pub(super) use look::workers;
pub(super) use payload::read as read_payload;
pub(super) use work::work;
