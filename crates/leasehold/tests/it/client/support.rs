//! What the tests of the client share.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::LockName;
use leasehold::store::memory::MemoryStore;
use leasehold::testing::FaultyStore;

/// A short lease, so that tests need not wait long; long enough for a busy machine.
pub(super) const TTL: Duration = Duration::from_millis(1500);

pub(super) async fn memory() -> Leasehold {
    Leasehold::connect("memory:").await.unwrap()
}

/// A client of a store that can be told to fail, and another one of the same store that does not.
pub(super) fn faulty() -> (Arc<FaultyStore>, Leasehold, Leasehold) {
    faulty_over(MemoryStore::new())
}

/// The same over this store.
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

/// Waits until something is so; fails when it takes too long.
pub(super) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
