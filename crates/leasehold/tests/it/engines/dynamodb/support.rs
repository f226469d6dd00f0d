//! What the tests of DynamoDB share: a table of its own for each, on the emulator.

use std::sync::Arc;

use leasehold::store::dynamodb::{self, DynamoDbOptions};
use leasehold::store::{Store, StoreUrl};

/// Where the emulator is; none if it is skipped by name.
pub(super) fn at() -> Option<String> {
    crate::engines::support::engine_at("dynamodb")
}

/// The URL of a table that nobody else uses, which is not there yet.
pub(super) fn new_url(at: &str) -> String {
    let (_, settings) = at.split_once('?').expect("the tests' URL has settings");
    format!("dynamodb://test-{:016x}?{settings}", fastrand::u64(..))
}

/// The URL of a new table.
pub(super) async fn new_table(at: &str) -> String {
    let url = new_url(at);
    dynamodb::create_table(&options(&url)).await.unwrap();
    url
}

pub(super) fn options(url: &str) -> DynamoDbOptions {
    DynamoDbOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap()
}

/// A client as if on a machine of its own.
pub(super) async fn alone(url: &str) -> Arc<dyn Store> {
    let mut options = options(url);
    options.alone = true;
    Arc::new(dynamodb::connect(options).await.unwrap())
}
