//! The compare-and-swap loop, over documents in memory.

use std::sync::Arc;

use leasehold::store::Cas;
use leasehold::store::memory::MemoryDocs;
use leasehold::testing::{Fixture, agrees_with_the_rules};

async fn fresh() -> Fixture {
    let clock = super::support::clock();
    let store = Arc::new(Cas::new(MemoryDocs::with_clock(clock.clone())).unwrap());
    Fixture::new(store.clone(), store, clock, ())
}

mod locks {
    leasehold::lock_conformance!(crate::engines::cas::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(256, fresh);
}
