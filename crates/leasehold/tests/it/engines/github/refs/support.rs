//! Helpers of the tests of refs.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::github::{self, GithubOptions};
use leasehold::store::{Clock, Store, StoreUrl};
use leasehold::testing::TestClient;

use crate::engines::github::fake::Fake;

/// Returns options of a client that is isolated as if on its own machine.
pub(super) fn options(fake: &Fake, login: &str, settings: &str) -> GithubOptions {
    let url = format!("{}&arbiter=ref{settings}", fake.url());
    let options = GithubOptions::from_url(&StoreUrl::parse(&url).unwrap()).unwrap();
    let mut options = options.with_token(format!("token-of-{login}"));
    options.gap = Duration::ZERO;
    options.alone = true;
    options
}

/// Connects a client that uses this clock.
pub(super) async fn client(fake: &Fake, login: &str, clock: &Clock) -> Arc<dyn Store> {
    let mut options = options(fake, login, "");
    options.clock = Some(clock.clone());
    options.exposes_documents = true;
    github::connect(options).await.unwrap()
}

/// Returns a test client with this login's token and this clock.
pub(in crate::engines::github) async fn test_client(
    (fake, clock): &(Fake, Clock),
    login: &str,
    lock: &str,
) -> TestClient {
    TestClient::new(client(fake, login, clock).await, new_id(), LockName::new(lock).unwrap())
}

pub(super) fn new_id() -> u128 {
    u128::from(fastrand::u64(1..)) << 64 | u128::from(fastrand::u64(1..))
}

/// Returns the same request from another process.
pub(super) async fn elsewhere(scenario: &(Fake, Clock), login: &str, test_client: &TestClient) -> TestClient {
    let mut test_client = test_client.clone();
    test_client.store = client(&scenario.0, login, &scenario.1).await;
    test_client
}
