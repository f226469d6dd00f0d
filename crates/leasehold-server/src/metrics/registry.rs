//! All metrics of the server.

use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::store::{InstrumentedStore, MetricsSnapshot};

use super::requests::Requests;
use super::store_gauges::{StoreCounts, StoreGauges};
use super::webhooks::WebhookCounts;

/// All metrics of the server.
pub(crate) struct MetricsRegistry {
    store: Arc<InstrumentedStore>,
    store_gauges: StoreGauges,
    pub(super) requests: Requests,
    /// Counters of webhook deliveries.
    pub(crate) webhooks: WebhookCounts,
    /// Whether `/metrics` needs no token.
    pub(crate) is_public: bool,
    /// Whether the page also has the unprefixed names.
    pub(crate) plain_names: bool,
}

impl MetricsRegistry {
    /// Returns an instrumented handle on the store, and the registry.
    pub(crate) fn new(leasehold: &Leasehold, is_public: bool) -> (Leasehold, Self) {
        let (measured, store) = leasehold.instrumented();
        // Queries for the gauges bypass the instrumentation, so that they are not counted.
        let store_gauges = StoreGauges::new(leasehold.clone());
        (
            measured,
            Self {
                store,
                store_gauges,
                requests: Requests::default(),
                webhooks: WebhookCounts::default(),
                is_public,
                plain_names: false,
            },
        )
    }

    pub(crate) async fn read(&self) -> (MetricsSnapshot, Option<Arc<StoreCounts>>) {
        (self.store.read().await, self.store_gauges.get().await)
    }
}
