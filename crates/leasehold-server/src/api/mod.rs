//! The endpoints, one file per kind of thing.

pub(crate) mod events;
pub(crate) mod executions;
pub(crate) mod lease;
pub(crate) mod locks;
pub(crate) mod metrics;
pub(crate) mod page_parts;
mod sse;
pub(crate) mod store;
mod task_events;
pub(crate) mod tasks;
pub(crate) mod webhooks;
pub(crate) mod workflows;
