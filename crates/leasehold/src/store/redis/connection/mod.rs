//! Connections to the servers: opening, sharing among callers, and batching of operations.

mod batcher;
mod connections;
mod connector;
mod subscription;

pub(super) use batcher::BatchedOp;
pub(super) use connections::Connections;
pub(super) use connector::{Connection, Connector, Request};
pub(super) use subscription::{MessageHandler, SubscribeOnce};
