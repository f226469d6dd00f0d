//! Helpers of the DynamoDB tests: each test has its own table on the emulator.

use std::sync::Arc;

use leasehold::store::dynamodb::{self, DynamoDbOptions};
use leasehold::store::{Store, StoreUrl};

/// Returns the URL of the emulator.
pub(super) fn at() -> String {
    crate::engines::support::engine_at("dynamodb")
}

/// Returns the URL of a table that does not exist yet.
pub(super) fn new_url(at: &str) -> String {
    let (_, settings) = at.split_once('?').expect("the tests' URL has settings");
    format!("dynamodb://test-{:016x}?{settings}", fastrand::u64(..))
}

/// Creates a table; returns its URL.
pub(super) async fn new_table(at: &str) -> String {
    let url = new_url(at);
    dynamodb::create_table(&options(&url)).await.unwrap();
    url
}

pub(super) fn options(url: &str) -> DynamoDbOptions {
    DynamoDbOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap()
}

/// Connects a client that observes leases separately, as if on another machine.
pub(super) async fn separate_client(url: &str) -> Arc<dyn Store> {
    let mut options = options(url);
    options.separate_observations = true;
    Arc::new(dynamodb::connect(options).await.unwrap())
}
