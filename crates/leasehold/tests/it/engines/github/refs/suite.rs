//! Conformance suites on the injected clock: all capabilities of locks, and the documents below
//! them.

use leasehold::testing::{Fixture, agrees_with_the_rules};

use super::support::client;
use crate::engines::github::support::fake;

/// Returns two clients with different tokens.
async fn fresh() -> Fixture {
    let (fake, clock) = fake().await;
    // The hour's limit does not suffice for leases of a second.
    fake.set_remaining(1_000_000);
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
