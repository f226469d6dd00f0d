//! Conformance suite and differential test, with an injected clock.

use std::sync::Arc;

use leasehold::store::Store;
use leasehold::store::dynamodb;
use leasehold::testing::{Fixture, agrees_with_the_rules};

use super::support::{at, new_table, options};

/// Creates two clients of a new table.
async fn fresh() -> Fixture {
    let clock = crate::engines::support::clock();
    let mut options = options(&new_table(&at()).await);
    options.clock = Some(clock.clone());
    let one: Arc<dyn Store> = Arc::new(dynamodb::connect(options.clone()).await.unwrap());
    let two: Arc<dyn Store> = Arc::new(dynamodb::connect(options).await.unwrap());
    Fixture::new(one, two, clock, ())
}

mod locks {
    leasehold::lock_conformance!(crate::engines::dynamodb::suite::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(24, fresh);
}
