//! Connections to the servers: opening, sharing among callers, and batching of operations.

mod batcher;
mod connections;
mod connector;
mod subscription;

pub(super) use batcher::{BatchedOp, Batcher};
pub(super) use connections::Connections;
pub(super) use connector::{
    CALL_TIMEOUT, Connection, Connector, REPLICA_TIMEOUT_MILLIS, Request, is_refusal,
};
pub(super) use subscription::{MessageHandler, POLL_INTERVAL, SubscribeOnce};
