//! A client that dies at any step, with its last request lost, done without an answer, or done late: there are never two
//! holders, and the next one gets the lock when its time is over.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockOp, Outcome, Release, Renew};
use leasehold::store::Clock;
use leasehold::testing::Player;

use super::support::player;
use crate::engines::github::fake::{Fake, Fate};
use crate::engines::github::support::{TTL, fake};

/// More than any operation makes.
const STEPS: u32 = 6;

/// When what was late takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    AtOnce,
    AfterTheNextHasIt,
}

#[tokio::test]
async fn while_it_takes_the_lock() {
    for_each_step(async |scene| scene.asks().await).await;
}

#[tokio::test]
async fn while_it_takes_the_lock_from_a_dead_one() {
    for_each_step(async |scene| {
        scene.eve.takes().await;
        scene.clock.advance(Duration::from_millis(TTL));
        scene.asks().await
    })
    .await;
}

#[tokio::test]
async fn while_it_renews() {
    for_each_step(async |scene| {
        scene.fake.heal();
        let lease = scene.ada.takes().await;
        scene.clock.advance(Duration::from_secs(4));
        scene.fake.crash("ada", scene.step, scene.fate.clone());
        let op = LockOp::Renew(Renew { lease_id: scene.ada.id(), token: lease.token, ttl: None });
        matches!(scene.ada.store.locks().apply(&scene.ada.lock, &op).await, Ok(Outcome::Renewed(_)))
    })
    .await;
}

#[tokio::test]
async fn while_it_gives_the_lock_back() {
    for_each_step(async |scene| {
        scene.fake.heal();
        let lease = scene.ada.takes().await;
        scene.fake.crash("ada", scene.step, scene.fate.clone());
        let op = LockOp::Release(Release { lease_id: scene.ada.id(), token: lease.token, at_least: None });
        drop(scene.ada.store.locks().apply(&scene.ada.lock, &op).await);
        false
    })
    .await;
}

struct Scene {
    fake: Fake,
    clock: Clock,
    ada: Player,
    eve: Player,
    step: u32,
    fate: Fate,
}

impl Scene {
    async fn asks(&self) -> bool {
        let ask = Arc::new(self.ada.ask.clone());
        let op = LockOp::Acquire(Acquire { ask, queue: None, steal_after: None });
        matches!(self.ada.store.locks().apply(&self.ada.lock, &op).await, Ok(Outcome::Granted(_)))
    }
}

/// Plays `dies` once for each step that it may die at; it says whether ada thinks that she holds the lock.
async fn for_each_step(dies: impl AsyncFn(&Scene) -> bool) {
    for step in 0..STEPS {
        for fate in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
            for then in [Then::AtOnce, Then::AfterTheNextHasIt] {
                let Some(made) = fake().await else { return };
                let (ada, bob) = (player(&made, "ada", "lock").await, player(&made, "bob", "lock").await);
                let eve = player(&made, "eve", "lock").await;
                let (fake, clock) = made;
                fake.crash("ada", step, fate.clone());
                let what = format!("step {step}, {fate:?}, {then:?}");
                let scene =
                    Scene { fake: fake.clone(), clock: clock.clone(), ada, eve, step, fate: fate.clone() };
                let holds = dies(&scene).await;
                if then == Then::AtOnce {
                    fake.catch_up();
                }
                if holds {
                    // Up to the last moment of the lease that ada counts on.
                    clock.advance(Duration::from_millis(TTL - 1));
                    assert!(matches!(bob.asks().await, Outcome::Busy(_)), "{what}: two holders");
                    clock.advance(Duration::from_millis(1));
                } else {
                    clock.advance(Duration::from_millis(TTL));
                }
                let lease = bob.takes().await;
                fake.catch_up();
                clock.advance(Duration::from_secs(3));
                assert!(matches!(bob.renews(&lease).await, Outcome::Renewed(_)), "{what}: it was lost again");
                assert!(matches!(scene.eve.asks().await, Outcome::Busy(_)), "{what}: eve came in");
            }
        }
    }
}
