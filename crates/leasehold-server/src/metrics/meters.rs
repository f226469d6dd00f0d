//! All measurements, for the handlers.

use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::store::{InstrumentedStore, MetricsSnapshot};

use super::census::{Census, Count};
use super::requests::Requests;
use super::webhooks::WebhookCounts;

/// All measurements of the server.
pub(crate) struct Meters {
    store: Arc<InstrumentedStore>,
    census: Census,
    pub(super) requests: Requests,
    /// Counters of webhook deliveries.
    pub(crate) webhooks: WebhookCounts,
    /// Whether `/metrics` needs no token.
    pub(crate) for_everyone: bool,
    /// Whether the page also has the unprefixed names.
    pub(crate) plain_names: bool,
}

impl Meters {
    /// Returns an instrumented handle on the store, and the measurements.
    pub(crate) fn new(leasehold: &Leasehold, for_everyone: bool) -> (Leasehold, Self) {
        let (measured, store) = leasehold.metered();
        // Queries for the gauges bypass the instrumentation, so that they are not counted.
        let census = Census::new(leasehold.clone());
        (
            measured,
            Self {
                store,
                census,
                requests: Requests::default(),
                webhooks: WebhookCounts::default(),
                for_everyone,
                plain_names: false,
            },
        )
    }

    pub(crate) async fn read(&self) -> (MetricsSnapshot, Option<Arc<Count>>) {
        (self.store.read().await, self.census.take().await)
    }
}
