//! Connections to the servers: opening, sharing among callers, and batching of operations.

mod batcher;
mod connections;
mod connector;

pub(super) use batcher::BatchedOp;
pub(super) use connections::Connections;
pub(super) use connector::{Connection, Connector, RESUBSCRIBE_DELAY, Request};
