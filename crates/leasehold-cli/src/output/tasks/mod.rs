//! Tasks, queues and workers, for people and for programs.
//!
//! | file | idea |
//! |---|---|
//! | `view.rs` | a task as JSON |
//! | `list.rs` | tasks as a table |
//! | `page.rs` | everything about one task |
//! | `queues.rs` | queues with their counts |
//! | `workers.rs` | who works |

mod list;
mod page;
mod queues;
mod view;
mod workers;

pub(crate) use list::task_table;
pub(super) use list::tint;
pub(crate) use page::task_page;
pub(crate) use queues::{QueueView, queue_table};
pub(crate) use view::TaskView;
pub(crate) use workers::{WorkerView, worker_table};
