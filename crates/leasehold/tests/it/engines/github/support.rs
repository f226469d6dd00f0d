//! What the tests of GitHub share: a GitHub of its own for each.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::github::{self, GithubOptions};
use leasehold::store::{Clock, Store, StoreUrl};
use leasehold::testing::Player;

use super::fake::Fake;

/// A GitHub with a clock that moves by hand; none if the tests go without it.
pub(super) async fn fake() -> Option<(Fake, Clock)> {
    let clock = crate::engines::support::clock();
    Fake::start(&clock).await.map(|fake| (fake, clock))
}

/// A client that this login's token belongs to.
pub(super) async fn client(fake: &Fake, login: &str) -> Arc<dyn Store> {
    github::connect(options(fake, login)).await.unwrap()
}

pub(super) fn options(fake: &Fake, login: &str) -> GithubOptions {
    let options = GithubOptions::from_url(&StoreUrl::parse(&fake.url()).unwrap()).unwrap();
    let mut options = options.with_token(format!("token-of-{login}"));
    options.gap = Duration::ZERO;
    options
}

/// Somebody who asks for a lock with this login's token.
pub(super) async fn player(fake: &Fake, login: &str, lock: &str) -> Player {
    let id = u128::from(fastrand::u64(1..)) << 64 | u128::from(fastrand::u64(1..));
    Player::new(client(fake, login).await, id, LockName::new(lock).unwrap())
}

/// As it was when it was made.
pub(super) const TTL: u64 = 10_000;
/// For how long others are kept out after that.
pub(super) const GRACE: u64 = 5_000;
