//! All that is measured, for handlers.

use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::store::{MeteredStore, Reading};

use super::census::{Census, Count};
use super::requests::Requests;
use super::webhooks::WebhookCounts;

/// What is measured.
pub(crate) struct Meters {
    store: Arc<MeteredStore>,
    census: Census,
    pub(super) requests: Requests,
    /// Deliveries of webhooks.
    pub(crate) webhooks: WebhookCounts,
    /// Whether everybody may see it, token or not.
    pub(crate) for_everyone: bool,
    /// Whether the page has the plain names as well.
    pub(crate) plain_names: bool,
}

impl Meters {
    /// A handle on the store that is measured, and the measurements.
    pub(crate) fn new(leasehold: &Leasehold, for_everyone: bool) -> (Leasehold, Self) {
        let (measured, store) = leasehold.metered();
        // What is looked up for the measurements is not part of them.
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

    pub(crate) async fn read(&self) -> (Reading, Option<Arc<Count>>) {
        (self.store.read().await, self.census.take().await)
    }
}
