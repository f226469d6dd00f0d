//! Notices: hints to the holder of a lease, or to a worker, that another caller has changed the lease
//! or the task.
//!
//! A holder learns of a forced release or of a release request at its next renewal. A notice makes
//! the holder renew at once, and a worker send its heartbeat at once. A lost notice costs only that
//! delay.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::registry::Registry;
use crate::model::{LeaseId, WorkerId};

/// Receiver of notices: a lease or a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Recipient(Uuid);

impl Recipient {
    /// Returns the id, as it is sent.
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// Returns the receiver with this id.
    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }
}

impl From<LeaseId> for Recipient {
    fn from(lease: LeaseId) -> Self {
        Self(*lease.as_uuid())
    }
}

impl From<WorkerId> for Recipient {
    fn from(worker: WorkerId) -> Self {
        Self(*worker.as_uuid())
    }
}

/// Callback for each notice. Called on any thread: it must not block.
pub type OnNotice = Arc<dyn Fn() + Send + Sync>;

/// Subscription to notices, which ends when it is dropped.
#[must_use = "a subscription that is dropped receives nothing"]
pub struct Subscription {
    _ends_when_dropped: Box<dyn Any + Send + Sync>,
}

impl Subscription {
    /// Returns a subscription that ends when this value is dropped.
    pub fn new(ends_when_dropped: impl Any + Send + Sync) -> Self {
        Self { _ends_when_dropped: Box::new(ends_when_dropped) }
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

/// Subscriptions of this process. One map for all stores: the ids are globally unique. A server may
/// subscribe for the same lease as a guard in its process.
static SUBSCRIBED: LazyLock<Registry<Recipient, OnNotice>> = LazyLock::new(Registry::default);

/// Subscribes to the notices that reach this process.
pub(crate) fn subscribe(to: Recipient, on_notice: OnNotice) -> Subscription {
    Subscription::new(SUBSCRIBED.register(to, on_notice))
}

/// Delivers notices in this process; returns the recipients that have no subscription here.
pub(crate) fn deliver(to: &[Recipient]) -> Vec<Recipient> {
    to.iter().filter(|recipient| !SUBSCRIBED.notify(recipient)).copied().collect()
}

impl Registry<Recipient, OnNotice> {
    /// Delivers a notice; returns whether it has a subscription.
    pub(crate) fn notify(&self, to: &Recipient) -> bool {
        let subscribers = self.get(to);
        for on_notice in &subscribers {
            on_notice();
        }
        !subscribers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::store::clock;

    #[test]
    fn a_notice_reaches_every_subscription_until_it_is_dropped() {
        let to = Recipient::from(clock::new_lease_id());
        let count = Arc::new(AtomicUsize::new(0));
        let counting = count.clone();
        let on_notice: OnNotice = Arc::new(move || _ = counting.fetch_add(1, Ordering::Relaxed));
        assert_eq!(deliver(&[to]), [to]);
        let first = subscribe(to, on_notice.clone());
        let second = subscribe(to, on_notice);
        assert_eq!(deliver(&[to]), []);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        drop(first);
        assert_eq!(deliver(&[to]), []);
        assert_eq!(count.load(Ordering::Relaxed), 3);
        drop(second);
        assert_eq!(deliver(&[to]), [to]);
        assert!(!SUBSCRIBED.lock().contains_key(&to));
    }
}
