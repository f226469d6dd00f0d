//! Conformance suite of the in-memory engine.

use std::sync::Arc;

use leasehold::store::memory::MemoryStore;
use leasehold::testing::{Fixture, agrees_with_the_rules, tasks_agree_with_the_rules};

async fn fresh() -> Fixture {
    let clock = super::support::clock();
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    Fixture::new(store.clone(), store, clock, ())
}

mod locks {
    leasehold::lock_conformance!(crate::engines::memory::fresh);
}

mod docs {
    leasehold::doc_conformance!(crate::engines::memory::fresh);
}

mod tasks {
    leasehold::task_conformance!(crate::engines::memory::fresh);
}

#[test]
fn its_tasks_agree_with_the_rules() {
    tasks_agree_with_the_rules(256, fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(256, fresh);
}
