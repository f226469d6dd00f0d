//! What the tests of refs share.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::github::{self, GithubOptions};
use leasehold::store::{Clock, Store, StoreUrl};
use leasehold::testing::Player;

use crate::engines::github::fake::Fake;

/// As if on a machine of its own.
pub(super) fn options(fake: &Fake, login: &str, settings: &str) -> GithubOptions {
    let url = format!("{}&arbiter=ref{settings}", fake.url());
    let options = GithubOptions::from_url(&StoreUrl::parse(&url).unwrap()).unwrap();
    let mut options = options.with_token(format!("token-of-{login}"));
    options.gap = Duration::ZERO;
    options.alone = true;
    options
}

/// A client that goes by this clock.
pub(super) async fn client(fake: &Fake, login: &str, clock: &Clock) -> Arc<dyn Store> {
    let mut options = options(fake, login, "");
    options.clock = Some(clock.clone());
    options.shows_docs = true;
    github::connect(options).await.unwrap()
}

/// Somebody who asks for a lock with this login's token, by this clock.
pub(in crate::engines::github) async fn player(
    (fake, clock): &(Fake, Clock),
    login: &str,
    lock: &str,
) -> Player {
    Player::new(client(fake, login, clock).await, new_id(), LockName::new(lock).unwrap())
}

pub(super) fn new_id() -> u128 {
    u128::from(fastrand::u64(1..)) << 64 | u128::from(fastrand::u64(1..))
}

/// The same request from another process.
pub(super) async fn elsewhere(scene: &(Fake, Clock), login: &str, player: &Player) -> Player {
    let mut player = player.clone();
    player.store = client(&scene.0, login, &scene.1).await;
    player
}
