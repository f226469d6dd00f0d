//! Locks in the file: a row for each lock, its newest events inline, and rows for the tickets of a
//! long queue.

mod apply;
mod cache;
mod inline_events;
pub(super) mod queries;
pub(super) mod tickets;

pub(super) use apply::OpResult;
pub(super) use cache::RowCache;
pub(super) use inline_events::EventNumbers;
