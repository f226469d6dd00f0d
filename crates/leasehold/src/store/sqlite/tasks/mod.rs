//! Tasks in the file: the rules are the model's, the lists they go by are partial indexes.
//!
//! | file | idea |
//! |---|---|
//! | `schema.rs` | tables and indexes, and what a restart of the machine does to leases |
//! | `rows.rs` | a task in and out of its row |
//! | `sql.rs` | the statements |
//! | `shelf.rs` | all that one transaction knows: queues, counts, who is to be woken |
//! | `change.rs` | one operation on one task: the rules, its lists, its lock |
//! | `enqueue.rs`, `lease.rs`, `tidy.rs`, `show.rs` | the calls |
//! | `errand.rs` | calls of several callers in one transaction |
//! | `syncer.rs` | waiting for the disk while others write on |
//! | `watch.rs` | noticing what other processes have written |
//! | `store.rs` | the contract, kept |
//! | `tests/costs.rs` | that calls cost the same however many tasks there are |

mod change;
mod enqueue;
mod errand;
mod lease;
mod rows;
mod schema;
mod shelf;
mod show;
mod sql;
mod store;
mod syncer;
#[cfg(test)]
mod tests;
mod tidy;
mod watch;

pub(super) use errand::{Aftermath, Call, Errand, Errands, answer_all, errand};
pub(super) use rows::micros;
pub(super) use schema::{BEGUN, HEADS_PER_QUEUE, TABLES, is_any_leased, start_anew};
pub(super) use shelf::{Queues, Shelf};
pub(super) use store::SqliteTasks;
pub(super) use syncer::Syncer;
