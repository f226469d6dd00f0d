//! The conformance suite, on one server and on a Cluster.

use std::sync::Arc;

use leasehold::store::memory::MemoryStore;
use leasehold::testing::{Fixture, agrees_with_the_rules};

use crate::engines::support::engine_at;

pub(super) async fn fresh() -> Fixture {
    fresh_on("redis").await
}

pub(super) async fn fresh_on_cluster() -> Fixture {
    fresh_on("redis-cluster").await
}

async fn fresh_on(engine: &str) -> Fixture {
    match engine_at(engine) {
        Some(url) => super::support::fresh_at(&url).await,
        // Skipped by name: the case runs on the memory engine.
        None => {
            let clock = crate::engines::support::clock();
            let store = Arc::new(MemoryStore::with_clock(clock.clone()));
            Fixture::new(store.clone(), store, clock, ())
        }
    }
}

mod locks {
    leasehold::lock_conformance!(crate::engines::redis::suite::fresh);
}

mod cluster {
    leasehold::lock_conformance!(crate::engines::redis::suite::fresh_on_cluster);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(64, fresh);
}

#[test]
fn a_cluster_agrees_with_the_rules() {
    agrees_with_the_rules(32, fresh_on_cluster);
}

mod docs {
    leasehold::doc_conformance!(crate::engines::redis::suite::fresh);
}

mod docs_of_a_cluster {
    leasehold::doc_conformance!(crate::engines::redis::suite::fresh_on_cluster);
}
