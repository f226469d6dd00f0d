//! Webhooks: signatures, filters, idempotency and the responses to rejected deliveries.

mod filters;
mod metrics;
mod origin;
mod replays;
mod senders;
mod signed;
