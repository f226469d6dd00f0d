//! Metrics about store calls, about the server itself, and about the current content of the store.

mod page;
mod registry;
mod store_gauges;

pub(crate) use page::page;
pub(crate) use registry::MetricsRegistry;
pub(crate) use store_gauges::StoreCounts;
