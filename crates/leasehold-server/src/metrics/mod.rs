//! Metrics about store calls, about the server itself, and about the current content of the store.

mod census;
mod meters;
mod page;
mod process;
mod requests;
mod text;
mod webhooks;

pub(crate) use census::Count;
pub(crate) use meters::Meters;
pub(crate) use page::page;
pub(crate) use requests::count_requests;
