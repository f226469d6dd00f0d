//! Metrics about store calls, about the server itself, and about the current content of the store.

mod page;
mod process;
mod registry;
mod requests;
mod store_gauges;
mod text;
mod webhooks;

pub(crate) use page::page;
pub(crate) use registry::MetricsRegistry;
pub(crate) use requests::count_requests;
pub(crate) use store_gauges::StoreCounts;
