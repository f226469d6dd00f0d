//! The endpoints, one file per kind of thing.

pub(crate) mod executions;
pub(crate) mod health;
pub(crate) mod locks;
pub(crate) mod started;
pub(crate) mod webhooks;
pub(crate) mod workflows;
