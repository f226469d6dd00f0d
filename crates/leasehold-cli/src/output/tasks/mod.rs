//! Text output of tasks, queues and workers; their JSON form is in the client library.

mod list;
mod page;
mod queues;
mod workers;

pub(crate) use list::task_table;
pub(super) use list::tint;
pub(crate) use page::task_page;
pub(crate) use queues::queue_table;
pub(crate) use workers::worker_table;
