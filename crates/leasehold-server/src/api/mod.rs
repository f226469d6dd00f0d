//! The endpoints, one file per kind of thing.

pub(crate) mod acquire;
pub(crate) mod events;
pub(crate) mod executions;
mod lease;
pub(crate) mod locks;
pub(crate) mod metrics;
pub(crate) mod start_reply;
pub(crate) mod store;
pub(crate) mod tasks;
pub(crate) mod webhooks;
pub(crate) mod workflows;
