//! Locks. An uncontended operation crosses `router`, one connection and `fast_path`.

mod batch;
mod batching;
mod codec;
mod fast_path;
mod fast_path_queue;
mod history;
mod inline_connection;
mod maintenance;
mod notify;
mod queries;
mod router;
mod slow_path;
mod sql;
mod tickets;

pub(super) use batching::BatchingConnection;
pub(super) use codec::LockRow;
pub(super) use fast_path::{eligible_lease, lease_of};
pub(super) use inline_connection::InlineConnection;
pub(super) use queries::{QueryConnection, prefix_end};
pub(super) use router::Router;
pub(super) use sql::{NOW, Sql, SqlTexts};
