//! The endpoints, one file per kind of thing.

pub(crate) mod acquire;
mod delivery;
pub(crate) mod events;
pub(crate) mod executions;
pub(crate) mod fence;
pub(crate) mod health;
pub(crate) mod history;
mod lease;
pub(crate) mod locks;
pub(crate) mod metrics;
pub(crate) mod started;
pub(crate) mod store;
pub(crate) mod tasks;
pub(crate) mod webhooks;
pub(crate) mod workflows;
