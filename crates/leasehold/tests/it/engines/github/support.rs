//! Helpers of the tests of GitHub: each test has its own fake.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::github::{self, GithubOptions};
use leasehold::store::{Clock, Store, StoreUrl};
use leasehold::testing::TestClient;

use super::fake::Fake;

/// Returns a fake with a manual clock.
pub(super) async fn fake() -> (Fake, Clock) {
    let clock = crate::engines::support::clock();
    (Fake::start(&clock).await, clock)
}

/// Connects a client with this login's token.
pub(super) async fn client(fake: &Fake, login: &str) -> Arc<dyn Store> {
    github::connect(options(fake, login)).await.unwrap()
}

pub(super) fn options(fake: &Fake, login: &str) -> GithubOptions {
    let options = GithubOptions::from_url(&StoreUrl::parse(&fake.url()).unwrap()).unwrap();
    let mut options = options.with_token(format!("token-of-{login}"));
    options.gap = Duration::ZERO;
    options
}

/// Returns a test client with this login's token.
pub(super) async fn test_client(fake: &Fake, login: &str, lock: &str) -> TestClient {
    let id = u128::from(fastrand::u64(1..)) << 64 | u128::from(fastrand::u64(1..));
    TestClient::new(client(fake, login).await, id, LockName::new(lock).unwrap())
}

/// TTL of a test client's lease, in ms.
pub(super) const TTL: u64 = 10_000;
/// Time for which others are kept out after the end of a lease, in ms.
pub(super) const GRACE: u64 = 5_000;
