//! Worker of a store that sometimes grants a lock although another client holds it, as a store does
//! that ignores a condition once in a while.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::model::{
    Event, ForceRelease, Holder, LeaseId, LockName, LockOp, LockRecord, Outcome, Reason, Swept, Timestamp,
};
use leasehold::store::{
    Capabilities, ListEvents, ListLocks, LockStore, Page, Peek, Store, TaskStore, WaiterSubscription,
};
use leasehold::{Leasehold, Result};

/// Number of acquires of a held lock of which one ignores the holder.
const PERIOD: u32 = 50;

struct BrokenStore {
    store: Arc<dyn Store>,
}

impl Store for BrokenStore {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn url(&self) -> String {
        self.store.url()
    }

    fn locks(&self) -> &dyn LockStore {
        self
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        self.store.tasks()
    }
}

#[async_trait]
impl LockStore for BrokenStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let locks = self.store.locks();
        if matches!(op, LockOp::Acquire(_)) && fastrand::u32(..PERIOD) == 0 {
            for lease in locks.get(name).await?.into_iter().flat_map(|record| record.holders) {
                let (by, reason) = (Holder::new("broken")?, Reason::new("a condition that is ignored")?);
                locks
                    .apply(name, &LockOp::ForceRelease(ForceRelease { token: lease.token, by, reason }))
                    .await?;
            }
        }
        locks.apply(name, op).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.store.locks().get(name).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.store.locks().peek(name, waiter).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.store.locks().list(query).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.store.locks().history(query).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store.locks().now().await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.store.locks().subscribe_waiter(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.store.locks().sweep(limit).await
    }
}

fn main() -> std::result::Result<(), leasehold_torture::Error> {
    leasehold_torture::run_worker_on(async |url: &str| {
        let store = Leasehold::connect(url).await?.store();
        Leasehold::with_store(Arc::new(BrokenStore { store }))
    })
}
