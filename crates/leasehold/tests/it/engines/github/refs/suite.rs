//! The suites, on the injected clock: everything that locks can do, and the documents underneath.

use std::sync::Arc;

use leasehold::testing::{Fixture, agrees_with_the_rules};

use super::support::client;
use crate::engines::github::support::fake;

/// Two clients with tokens of their own. If the engine is skipped by name, the suite plays against memory instead: the
/// tests are made by a macro that knows no way out.
async fn fresh() -> Fixture {
    let Some((fake, clock)) = fake().await else {
        let clock = crate::engines::support::clock();
        let store = Arc::new(leasehold::store::memory::MemoryStore::with_clock(clock.clone()));
        return Fixture::new(store.clone(), store, clock, ());
    };
    // Leases of a second are renewed more often than the hour allows.
    fake.left(1_000_000);
    let (one, two) = (client(&fake, "ada", &clock).await, client(&fake, "bob", &clock).await);
    Fixture::new(one, two, clock, fake)
}

mod locks {
    leasehold::lock_conformance!(crate::engines::github::refs::suite::fresh);
}

mod docs {
    leasehold::doc_conformance!(crate::engines::github::refs::suite::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(32, fresh);
}
