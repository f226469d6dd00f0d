//! A client that dies at any step, with its last request lost, done without an answer, or done late: there are never two
//! holders, and the next one gets the lock within the ttl and the margin. Whatever decides: comments, or refs.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockOp, Outcome, Release, Renew};
use leasehold::store::Clock;
use leasehold::testing::Player;

use super::fake::{Fake, Fate};
use super::refs;
use super::support::{GRACE, TTL, fake, player};

/// What decides.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Comments,
    Refs,
}

/// When what was late takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    AtOnce,
    AfterTheNextHasIt,
}

mod comments {
    use super::By::Comments;

    #[tokio::test]
    async fn while_it_takes_the_lock() {
        super::takes(Comments).await;
    }

    #[tokio::test]
    async fn while_it_takes_the_lock_from_a_dead_one() {
        super::takes_from_a_dead_one(Comments).await;
    }

    #[tokio::test]
    async fn while_it_renews() {
        super::renews(Comments).await;
    }

    #[tokio::test]
    async fn while_it_gives_the_lock_back() {
        super::gives_back(Comments).await;
    }
}

mod by_refs {
    use super::By::Refs;

    #[tokio::test]
    async fn while_it_takes_the_lock() {
        super::takes(Refs).await;
    }

    #[tokio::test]
    async fn while_it_takes_the_lock_from_a_dead_one() {
        super::takes_from_a_dead_one(Refs).await;
    }

    #[tokio::test]
    async fn while_it_renews() {
        super::renews(Refs).await;
    }

    #[tokio::test]
    async fn while_it_gives_the_lock_back() {
        super::gives_back(Refs).await;
    }
}

async fn takes(by: By) {
    for_each_step(by, async |scene| scene.asks().await).await;
}

async fn takes_from_a_dead_one(by: By) {
    for_each_step(by, async |scene| {
        scene.eve.takes().await;
        scene.clock.advance(Duration::from_millis(TTL + by.grace()));
        scene.asks().await
    })
    .await;
}

async fn renews(by: By) {
    for_each_step(by, async |scene| {
        scene.fake.heal();
        let lease = scene.ada.takes().await;
        scene.clock.advance(Duration::from_secs(4));
        scene.fake.crash("ada", scene.step, scene.fate.clone());
        let op = LockOp::Renew(Renew { lease_id: scene.ada.id(), token: lease.token, ttl: None });
        matches!(scene.ada.store.locks().apply(&scene.ada.lock, &op).await, Ok(Outcome::Renewed(_)))
    })
    .await;
}

async fn gives_back(by: By) {
    for_each_step(by, async |scene| {
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

impl By {
    /// More than any operation makes.
    const fn steps(self) -> u32 {
        match self {
            Self::Comments => 10,
            Self::Refs => 6,
        }
    }

    /// For how long a lease that has ended keeps others out.
    const fn grace(self) -> u64 {
        match self {
            Self::Comments => GRACE,
            Self::Refs => 0,
        }
    }

    /// The unit of its times.
    const fn unit(self) -> u64 {
        match self {
            Self::Comments => 1_000,
            Self::Refs => 1,
        }
    }

    async fn player(self, made: &(Fake, Clock), login: &str) -> Player {
        match self {
            Self::Comments => player(&made.0, login, "#1").await,
            Self::Refs => refs::support::player(made, login, "lock").await,
        }
    }
}

/// Plays `dies` once for each step that it may die at; it says whether ada thinks that she holds the lock.
async fn for_each_step(by: By, dies: impl AsyncFn(&Scene) -> bool) {
    for step in 0..by.steps() {
        for fate in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
            for then in [Then::AtOnce, Then::AfterTheNextHasIt] {
                let Some(made) = fake().await else { return };
                made.0.new_issue("Deploy");
                let (ada, bob) = (by.player(&made, "ada").await, by.player(&made, "bob").await);
                let eve = by.player(&made, "eve").await;
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
                    clock.advance(Duration::from_millis(TTL - by.unit()));
                    assert!(matches!(bob.asks().await, Outcome::Conflict(_)), "{what}: two holders");
                    clock.advance(Duration::from_millis(by.unit() + by.grace()));
                } else {
                    clock.advance(Duration::from_millis(TTL + by.grace()));
                }
                let lease = bob.takes().await;
                fake.catch_up();
                clock.advance(Duration::from_secs(3));
                assert!(matches!(bob.renews(&lease).await, Outcome::Renewed(_)), "{what}: it was lost again");
                assert!(matches!(scene.eve.asks().await, Outcome::Conflict(_)), "{what}: eve came in");
            }
        }
    }
}
