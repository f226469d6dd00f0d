//! Locks. An uncontended operation crosses `router`, one connection and `fast_path`.

mod batch;
mod batching_connection;
mod codec;
pub(super) mod fast_path;
pub(super) mod fast_path_queue;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
pub(super) mod history;
mod inline_connection;
pub(super) mod maintenance;
pub(super) mod notify;
pub(super) mod queries;
mod router;
pub(super) mod slow_path;
pub(super) mod tickets;

pub(super) use batching_connection::BatchingConnection;
pub(super) use fast_path::{eligible_lease, lease_of};
pub(super) use inline_connection::InlineConnection;
pub(super) use queries::{QueryConnection, prefix_end};
pub(super) use router::Router;
