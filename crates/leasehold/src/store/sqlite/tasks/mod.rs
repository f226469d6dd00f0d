//! Tasks in the file: the rules are those of leasehold-model; the lists they need are partial
//! indexes.

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
