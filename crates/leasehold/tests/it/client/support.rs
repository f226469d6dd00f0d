//! Helpers for the tests of the client.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::LockName;
use leasehold::store::memory::MemoryStore;
use leasehold::testing::FaultyStore;

/// Lease time that keeps tests short and is long enough for a busy machine.
pub(super) const TTL: Duration = Duration::from_millis(1500);

pub(super) async fn memory() -> Leasehold {
    Leasehold::connect("memory:").await.unwrap()
}

/// Returns a store that fails on request, a client of it, and a client of the same store without
/// faults.
pub(super) fn faulty() -> (Arc<FaultyStore>, Leasehold, Leasehold) {
    faulty_over(MemoryStore::new())
}

/// Like [`faulty`], over this store.
pub(super) fn faulty_over(store: MemoryStore) -> (Arc<FaultyStore>, Leasehold, Leasehold) {
    let store = Arc::new(store);
    let faulty = FaultyStore::new(store.clone());
    let (client, other) =
        (Leasehold::with_store(faulty.clone()).unwrap(), Leasehold::with_store(store).unwrap());
    (faulty, client, other)
}

pub(super) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

/// Waits until the condition holds; panics after 20 s.
pub(super) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("timed out: {what}"));
}
