//! Tests of a client that dies at any step, with its last request lost, executed without a
//! response, or executed late: there are never two holders, and the next client gets the lock
//! within the ttl and the margin. With either arbiter: comments or refs.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockOp, Outcome, Release, Renew};
use leasehold::store::Clock;
use leasehold::testing::TestClient;

use super::fake::{Fake, Fate};
use super::refs;
use super::support::{GRACE, TTL, fake, test_client};

/// Arbiter of the lock.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Arbiter {
    Comments,
    Refs,
}

/// Time at which a late request takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LateEffect {
    AtOnce,
    AfterTheNextHolder,
}

mod comments {
    use super::Arbiter::Comments;

    #[tokio::test]
    async fn during_an_acquire() {
        super::acquire(Comments).await;
    }

    #[tokio::test]
    async fn during_a_takeover() {
        super::take_over(Comments).await;
    }

    #[tokio::test]
    async fn during_a_renewal() {
        super::renew(Comments).await;
    }

    #[tokio::test]
    async fn during_a_release() {
        super::release(Comments).await;
    }
}

mod by_refs {
    use super::Arbiter::Refs;

    #[tokio::test]
    async fn during_an_acquire() {
        super::acquire(Refs).await;
    }

    #[tokio::test]
    async fn during_a_takeover() {
        super::take_over(Refs).await;
    }

    #[tokio::test]
    async fn during_a_renewal() {
        super::renew(Refs).await;
    }

    #[tokio::test]
    async fn during_a_release() {
        super::release(Refs).await;
    }
}

async fn acquire(arbiter: Arbiter) {
    for_each_step(arbiter, async |scenario| scenario.try_acquire().await).await;
}

async fn take_over(arbiter: Arbiter) {
    for_each_step(arbiter, async |scenario| {
        scenario.eve.acquire().await;
        scenario.clock.advance(Duration::from_millis(TTL + arbiter.grace()));
        scenario.try_acquire().await
    })
    .await;
}

async fn renew(arbiter: Arbiter) {
    for_each_step(arbiter, async |scenario| {
        scenario.fake.heal();
        let lease = scenario.ada.acquire().await;
        scenario.clock.advance(Duration::from_secs(4));
        scenario.fake.crash("ada", scenario.step, scenario.fate.clone());
        let op = LockOp::Renew(Renew { lease_id: scenario.ada.id(), token: lease.token, ttl: None });
        matches!(scenario.ada.store.locks().apply(&scenario.ada.lock, &op).await, Ok(Outcome::Renewed(_)))
    })
    .await;
}

async fn release(arbiter: Arbiter) {
    for_each_step(arbiter, async |scenario| {
        scenario.fake.heal();
        let lease = scenario.ada.acquire().await;
        scenario.fake.crash("ada", scenario.step, scenario.fate.clone());
        let op = LockOp::Release(Release { lease_id: scenario.ada.id(), token: lease.token, at_least: None });
        drop(scenario.ada.store.locks().apply(&scenario.ada.lock, &op).await);
        false
    })
    .await;
}

struct Scenario {
    fake: Fake,
    clock: Clock,
    ada: TestClient,
    eve: TestClient,
    step: u32,
    fate: Fate,
}

impl Scenario {
    async fn try_acquire(&self) -> bool {
        let request = Arc::new(self.ada.request.clone());
        let op = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
        matches!(self.ada.store.locks().apply(&self.ada.lock, &op).await, Ok(Outcome::Granted(_)))
    }
}

impl Arbiter {
    /// Returns a number of requests that no operation exceeds.
    const fn steps(self) -> u32 {
        match self {
            Self::Comments => 10,
            Self::Refs => 6,
        }
    }

    /// Returns the time for which a lease that has ended keeps others out.
    const fn grace(self) -> u64 {
        match self {
            Self::Comments => GRACE,
            Self::Refs => 0,
        }
    }

    /// Returns the resolution of the arbiter's times.
    const fn resolution(self) -> u64 {
        match self {
            Self::Comments => 1_000,
            Self::Refs => 1,
        }
    }

    async fn client(self, fixture: &(Fake, Clock), login: &str) -> TestClient {
        match self {
            Self::Comments => test_client(&fixture.0, login, "#1").await,
            Self::Refs => refs::support::test_client(fixture, login, "lock").await,
        }
    }
}

/// Runs `dies` once for each step at which ada may die; it returns whether ada believes that she
/// holds the lock.
async fn for_each_step(arbiter: Arbiter, dies: impl AsyncFn(&Scenario) -> bool) {
    for step in 0..arbiter.steps() {
        for fate in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
            for then in [LateEffect::AtOnce, LateEffect::AfterTheNextHolder] {
                let fixture = fake().await;
                fixture.0.new_issue("Deploy");
                let (ada, bob) =
                    (arbiter.client(&fixture, "ada").await, arbiter.client(&fixture, "bob").await);
                let eve = arbiter.client(&fixture, "eve").await;
                let (fake, clock) = fixture;
                fake.crash("ada", step, fate.clone());
                let label = format!("step {step}, {fate:?}, {then:?}");
                let scenario =
                    Scenario { fake: fake.clone(), clock: clock.clone(), ada, eve, step, fate: fate.clone() };
                let holds = dies(&scenario).await;
                if then == LateEffect::AtOnce {
                    fake.catch_up();
                }
                if holds {
                    // Advances to the last moment of ada's lease.
                    clock.advance(Duration::from_millis(TTL - arbiter.resolution()));
                    assert!(matches!(bob.try_acquire().await, Outcome::Conflict(_)), "{label}: two holders");
                    clock.advance(Duration::from_millis(arbiter.resolution() + arbiter.grace()));
                } else {
                    clock.advance(Duration::from_millis(TTL + arbiter.grace()));
                }
                let lease = bob.acquire().await;
                fake.catch_up();
                clock.advance(Duration::from_secs(3));
                assert!(
                    matches!(bob.renew(&lease).await, Outcome::Renewed(_)),
                    "{label}: the lease was lost"
                );
                assert!(
                    matches!(scenario.eve.try_acquire().await, Outcome::Conflict(_)),
                    "{label}: eve got it"
                );
            }
        }
    }
}
