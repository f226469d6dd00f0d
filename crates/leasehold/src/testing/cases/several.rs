//! Several locks through the client: each lock is held from its grant on, all of them are returned
//! valid, and the loss of one lock releases the others.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::client::{GuardState, Leasehold};
use crate::error::Error;
use crate::model::{Holder, LockName, Reason, Token, Ttl};
use crate::store::{BootInstant, Capabilities, DocumentStore, LockStore, Store, TaskStore};
use crate::testing::Fixture;

/// Lease ttl; long enough for a busy machine.
const TTL: Duration = Duration::from_secs(4);
/// Lease ttl for remote engines, where a request takes longer and times are in whole seconds.
const FAR_TTL: Duration = Duration::from_secs(8);
const FAR: Duration = Duration::from_secs(5);
/// Step of the engine's clock. Each step takes at least this time, so that the engine's clock is
/// never ahead of the clients.
const STEP: Duration = Duration::from_millis(20);

/// The second lock is held for three times the ttl of the first lease.
pub async fn the_first_lock_is_held_while_the_second_is_awaited(fixture: Fixture) {
    let lab = Lab::new(fixture);
    let second = lab.two.lock("b").ttl(lab.ttl).acquire().await.expect("b is free");
    let waits = tokio::spawn(lab.one.lock("b").and("a").ttl(lab.ttl).wait(lab.timeout()).acquire());
    lab.until("a is held", async || lab.token("a").await.is_some()).await;
    let token = lab.token("a").await;
    let mut passed = Duration::ZERO;
    while passed < lab.ttl * 3 {
        passed += lab.pass(lab.ttl / 4).await;
        let other = lab.two.lock("a").ttl(lab.ttl).acquire().await;
        assert!(matches!(other, Err(Error::Conflict { .. })), "a was free after {passed:?}: {other:?}");
        assert!(!waits.is_finished(), "b is held by another client");
    }
    second.release().await.expect("b was held all the time");
    let guard = lab.at_last("b", waits).await;
    assert!(BootInstant::now() < guard.watch().borrow().valid_until, "a guard was returned that has ended");
    assert_eq!(guard.state(), GuardState::Held);
    let held: Vec<_> = guard.leases().into_iter().map(|(name, lease)| (name, Some(lease.token))).collect();
    assert_eq!(held[0].1, token, "the first lease was lost and taken anew");
    for (name, token) in held {
        let status = lab.two.locks().status(&name).await.expect("the store answers");
        let other = lab.two.lock(name.as_str()).ttl(lab.ttl).acquire().await;
        // A machine that stalls for longer than the ttl loses the lease, and the guard knows it.
        if BootInstant::now() >= guard.watch().borrow().valid_until {
            return;
        }
        // The end that a status shows is rounded to whole seconds on some engines, so the refusal
        // shows that the lease lasts.
        assert!(matches!(other, Err(Error::Conflict { .. })), "{name} was free: {other:?}");
        assert_eq!(status.holders.first().map(|held| held.token), token, "{name}");
    }
    guard.release().await.expect("both were held");
}

/// The first lock is taken by force while the client waits for the second: the client requests both
/// again.
pub async fn losing_the_first_lock_while_waiting_starts_again(fixture: Fixture) {
    let lab = Lab::new(fixture);
    let second = lab.two.lock("b").ttl(lab.ttl).acquire().await.expect("b is free");
    let waits = tokio::spawn(lab.one.lock("a").and("b").ttl(lab.ttl).wait(lab.timeout()).acquire());
    lab.until("a is held", async || lab.token("a").await.is_some()).await;
    let token = lab.token("a").await.expect("a is held");
    lab.force("a", token).await;
    lab.until("a is held again", async || lab.token("a").await.is_some_and(|next| next > token)).await;
    second.release().await.expect("b was held all the time");
    let guard = lab.at_last("b", waits).await;
    for (name, lease) in guard.leases() {
        assert_eq!(lab.token(name.as_str()).await, Some(lease.token), "{name}");
    }
    lab.until("no ticket is left", async || {
        lab.two.locks().status(&name("b")).await.expect("the store answers").waiters.is_empty()
    })
    .await;
    guard.release().await.expect("both were held");
}

/// The other locks stay held as long as their work may run, and are released before their leases
/// expire.
pub async fn losing_one_lock_releases_the_others(fixture: Fixture) {
    let lab = Lab::new(fixture);
    let long = Duration::from_secs(30);
    let guard = lab.one.lock("a").and("b").ttl(long).renew_at(0.05).acquire().await.expect("both are free");
    let held = lab.token("b").await;
    lab.force("a", lab.token("a").await.expect("a is held")).await;
    let lost = tokio::time::timeout(long / 2, guard.lost()).await;
    lost.expect("the next renewal shows the loss");
    assert!(guard.loss().expect("it is lost").to_string().starts_with("the lease on lock 'a' was lost: "));
    assert_eq!(lab.token("b").await, held, "its work may not have stopped yet");
    drop(guard);
    lab.one.clone().close().await;
    assert_eq!(lab.token("b").await, None);
}

/// Fixture that advances both clocks: the engine's clock is manual, and the guards use the clock of
/// this machine.
struct Lab {
    one: Leasehold,
    two: Leasehold,
    ttl: Duration,
    poll: Duration,
    fixture: Fixture,
}

impl Lab {
    fn new(fixture: Fixture) -> Self {
        let client = |store: &Arc<dyn Store>| {
            Leasehold::with_store(Arc::new(AnyTtl(store.clone()))).expect("a thread can be started")
        };
        let capabilities = fixture.one.capabilities();
        let ttl = if capabilities.poll < FAR { TTL } else { FAR_TTL };
        let (one, two, poll) = (client(&fixture.one), client(&fixture.two), capabilities.poll);
        Self { one, two, ttl, poll, fixture }
    }

    fn timeout(&self) -> Duration {
        Duration::from_mins(5) + self.poll * 10
    }

    /// Advances the engine's clock step by step until at least this time has passed; at least the
    /// same time passes on this machine. Returns the time that has passed on the engine's clock.
    async fn pass(&self, time: Duration) -> Duration {
        let mut passed = Duration::ZERO;
        while passed < time {
            tokio::time::sleep(STEP).await;
            self.fixture.clock.advance(STEP);
            passed += STEP;
        }
        passed
    }

    async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let start = BootInstant::now();
        while !is_so().await {
            self.pass(STEP).await;
            assert!(BootInstant::now().after(start) < self.timeout(), "never: {what}");
        }
    }

    async fn at_last(
        &self,
        lock: &str,
        waits: tokio::task::JoinHandle<crate::Result<crate::Guard>>,
    ) -> crate::Guard {
        self.until(&format!("{lock} is granted"), async || waits.is_finished()).await;
        waits.await.expect("it does not panic").expect("all are granted")
    }

    /// Returns the token of the live lease on a lock.
    async fn token(&self, lock: &str) -> Option<Token> {
        let status = self.two.locks().status(&name(lock)).await.expect("the store answers");
        status.holders.iter().find(|held| status.now < held.expires_at).map(|held| held.token)
    }

    async fn force(&self, lock: &str, token: Token) {
        let by = Holder::new("admin").expect("a good holder");
        let reason = Reason::new("stuck").expect("a good reason");
        self.two.locks().force_release(&name(lock), token, by, reason).await.expect("it was held");
    }
}

fn name(name: &str) -> LockName {
    LockName::new(name).expect("a good name in a test")
}

/// Store wrapper that permits any ttl, so that a case need not last as long as the shortest lease
/// of a remote engine.
struct AnyTtl(Arc<dyn Store>);

#[async_trait]
impl Store for AnyTtl {
    fn capabilities(&self) -> Capabilities {
        Capabilities { min_ttl: Ttl::MIN, ..self.0.capabilities() }
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn locks(&self) -> &dyn LockStore {
        self.0.locks()
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        self.0.tasks()
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        self.0.documents()
    }
}
