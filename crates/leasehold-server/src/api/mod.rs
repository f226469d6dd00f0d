//! The endpoints, one file per kind of resource.

pub(crate) mod events;
pub(crate) mod executions;
pub(crate) mod lease;
pub(crate) mod locks;
pub(crate) mod metrics;
pub(crate) mod page_parts;
pub(crate) mod store;
pub(crate) mod tasks;
pub(crate) mod webhooks;
pub(crate) mod workflows;
