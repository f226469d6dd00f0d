//! The endpoints, one file per kind of thing.

pub(crate) mod acquire;
pub(crate) mod events;
pub(crate) mod executions;
pub(crate) mod fence;
pub(crate) mod health;
pub(crate) mod history;
mod lease;
mod lease_response;
pub(crate) mod locks;
pub(crate) mod metrics;
pub(crate) mod start_reply;
pub(crate) mod store;
pub(crate) mod tasks;
pub(crate) mod webhooks;
pub(crate) mod workflows;
