//! Metrics about store calls, about the server itself, and about the current content of the store.

mod page;
mod registry;

pub(crate) use page::page;
pub(crate) use registry::{MetricsRegistry, StoreCounts};
