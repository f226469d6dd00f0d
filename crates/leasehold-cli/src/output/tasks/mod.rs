//! Tasks, queues and workers, for people; for programs they are written by the library.
//!
//! | file | idea |
//! |---|---|
//! | `list.rs` | tasks as a table |
//! | `page.rs` | everything about one task |
//! | `queues.rs` | queues with their counts |
//! | `workers.rs` | who works |

mod list;
mod page;
mod queues;
mod workers;

pub(crate) use list::task_table;
pub(super) use list::tint;
pub(crate) use page::task_page;
pub(crate) use queues::queue_table;
pub(crate) use workers::worker_table;
