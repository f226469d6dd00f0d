//! Helpers of the tests of Redis.

use std::sync::Arc;

use leasehold::store::redis::{RedisOptions, RedisStore};
use leasehold::store::{Clock, StoreUrl};
use leasehold::testing::Fixture;
use uuid::Uuid;

/// Returns a unique prefix.
pub(super) fn prefix() -> String {
    format!("test-{}", Uuid::now_v7().simple())
}

/// Returns the options of a store at `url` with this prefix.
pub(super) fn options(url: &str, prefix: &str) -> RedisOptions {
    let mut options = RedisOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap();
    prefix.clone_into(&mut options.prefix);
    options
}

/// Opens a store with this prefix and a manual clock.
pub(super) async fn open(url: &str, prefix: &str, clock: &Clock) -> Arc<RedisStore> {
    let mut options = options(url, prefix);
    options.clock = Some(clock.clone());
    Arc::new(RedisStore::connect(options).await.unwrap())
}

/// Returns two clients of the server at `url` with a unique prefix.
pub(super) async fn fresh_at(url: &str) -> Fixture {
    let (prefix, clock) = (prefix(), crate::engines::support::clock());
    let (one, two) = (open(url, &prefix, &clock).await, open(url, &prefix, &clock).await);
    Fixture::new(one, two, clock, ())
}
