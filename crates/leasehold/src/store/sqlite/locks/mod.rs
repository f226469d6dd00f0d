//! Locks in the file: a row for each lock, its newest events inline, and rows for the tickets of a
//! long queue.

mod apply;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod history;
mod maintenance;
pub(super) mod queries;
mod row;
mod tickets;

pub(super) use apply::{Committed, OpResult};
pub(super) use history::LockHistory;
pub(super) use row::{EventNumbers, RowCache};
