//! Interface that every engine implements: its locks, tasks and documents, and how to reach other
//! clients.

use async_trait::async_trait;

use super::{Capabilities, DocumentStore, HealthCheck, LockStore, RateLimit, TaskStore};
use crate::Result;
use crate::model::WorkerId;
use crate::store::clock::new_id;
use crate::store::{OnNotice, Recipient, Subscription, wake};

/// Engine.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Returns the feature set of the engine.
    fn capabilities(&self) -> Capabilities;

    /// Returns the address of the store for output, without secrets.
    fn url(&self) -> String;

    /// Returns the locks of the store.
    fn locks(&self) -> &dyn LockStore;

    /// Returns the tasks of the store, if the engine supports tasks.
    fn tasks(&self) -> Option<&dyn TaskStore> {
        None
    }

    /// Returns the documents of the store, if the engine supports documents.
    fn documents(&self) -> Option<&dyn DocumentStore> {
        None
    }

    /// Returns the remaining request quota of the service, as last reported; `None` if the service
    /// has no quota.
    fn rate_limit(&self) -> Option<RateLimit> {
        None
    }

    /// Returns an id for a new worker.
    fn new_worker_id(&self) -> WorkerId {
        WorkerId::from_uuid(new_id())
    }

    /// Subscribes to the notices for a lease or a worker. By default only notices that are sent in
    /// this process arrive.
    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        wake::subscribe(to, on_notice)
    }

    /// Sends a notice to the subscribed holders or workers, in other processes too if the engine
    /// supports that. A notice is a hint, like a wake-up: it may be lost, so failures are not
    /// reported.
    async fn notify(&self, to: &[Recipient]) {
        wake::deliver(to);
    }

    /// Checks the engine: version, schema, and settings that would break a guarantee. Meant for
    /// operators, so it may take a few round trips.
    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        Ok(Vec::new())
    }
}
