//! The conformance suite, within what this engine can do, on the injected clock.

use std::sync::Arc;

use leasehold::testing::Fixture;

use super::support::{client, fake};

/// Two clients with tokens of their own. If the engine is skipped by name, the suite plays against memory instead: the
/// tests are made by a macro that knows no way out.
async fn fresh() -> Fixture {
    let Some((fake, clock)) = fake().await else {
        let clock = crate::engines::support::clock();
        let store = Arc::new(leasehold::store::memory::MemoryStore::with_clock(clock.clone()));
        return Fixture::new(store.clone(), store, clock, ());
    };
    let (one, two) = (client(&fake, "ada").await, client(&fake, "bob").await);
    Fixture::new(one, two, clock, fake)
}

mod locks {
    leasehold::lock_conformance!(crate::engines::github::suite::fresh);
}
