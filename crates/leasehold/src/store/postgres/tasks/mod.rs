//! Tasks in PostgreSQL. What is hot is decided in SQL, for a whole batch in one statement on the server's own clock;
//! everything else goes by the rules in [`crate::model`], under row locks.
//!
//! | file | idea |
//! |---|---|
//! | `schema.rs` | the tables |
//! | `sql.rs`, `sql_rules.rs`, `text.rs` | every statement: those that decide, those that load and save for the rules; how they are filled in |
//! | `rows.rs`, `columns.rs` | tasks, out of rows and into columns |
//! | `link.rs`, `pool.rs` | a connection made for tasks, and the few that there are |
//! | `add.rs`, `inbox.rs` | adding tasks, and those of several callers at once |
//! | `theirs.rs` | adding tasks in a transaction of the caller |
//! | `lease.rs`, `cursors.rs` | who gets what, and from where on the index is read |
//! | `settle.rs` | the end of attempts, and signs of life |
//! | `bench.rs` | several tasks changed by the rules, as one step |
//! | `upkeep.rs` | what time does: recovery, promotion, adding up counts; forgetting |
//! | `reads.rs` | tasks, queues and workers, to look at |
//! | `wakes.rs` | telling workers that something may have arrived, here and elsewhere |
//! | `store.rs` | all of it as a [`TaskStore`](crate::store::TaskStore) |

mod add;
mod bench;
mod columns;
mod cursors;
mod inbox;
mod lease;
mod link;
mod pool;
mod reads;
mod rows;
mod schema;
mod settle;
mod sql;
mod sql_rules;
mod store;
mod text;
mod theirs;
mod upkeep;
mod wakes;

pub(super) use link::Link;
pub(super) use pool::Pool;
pub(super) use schema::{BEGUN, HEADS_PER_QUEUE, ONE_ROW, SCHEMA};
pub(super) use sql::Sql;
#[cfg(feature = "testing")]
pub use store::LeaseStatement;
pub(super) use store::PostgresTasks;
pub use theirs::{EnqueuedInside, WakeWorkers};
pub(super) use wakes::Wakes;
