//! The conformance suite, within what this engine can do, on the injected clock.

use std::sync::Arc;

use leasehold::model::QueueName;
use leasehold::store::github;
use leasehold::testing::Fixture;

use super::support::{client, fake, options};

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

/// The same with all queues of the suite in the address: a client knows only those that it was told of or has used.
async fn fresh_with_queues() -> Fixture {
    let Some((fake, clock)) = fake().await else { return fresh().await };
    let client = async |login: &str| {
        let mut options = options(&fake, login);
        options.queues = ["q", "other", "third"].map(|name| QueueName::new(name).unwrap()).to_vec();
        github::connect(options).await.unwrap()
    };
    let (one, two) = (client("ada").await, client("bob").await);
    Fixture::new(one, two, clock, fake)
}

mod locks {
    leasehold::lock_conformance!(crate::engines::github::suite::fresh);
}

mod tasks {
    leasehold::task_conformance!(crate::engines::github::suite::fresh_with_queues);
}
