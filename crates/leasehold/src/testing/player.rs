//! Somebody in a test who asks for a lock.

use std::sync::Arc;

use uuid::Uuid;

use crate::model::{
    Acquire, Ask, AskRelease, BootId, Conflict, ForceRelease, Holder, Lease, LeaseId, Leave, LockName,
    LockOp, LockRecord, Metadata, Mode, Outcome, Priority, Process, Queued, Reason, Release, Renew, Slots,
    Token, Ttl,
};
use crate::store::{Changes, Peek, Store};

/// Somebody in a test who asks for a lock. Its lease lasts 10 s, its tickets 5 s.
#[derive(Clone)]
pub struct Player {
    /// The client it uses.
    pub store: Arc<dyn Store>,
    /// The lock it wants.
    pub lock: LockName,
    /// What it asks for.
    pub ask: Ask,
    steal_after: Option<Ttl>,
}

/// How long a player's ticket lives.
const TICKET: Ttl = Ttl::from_secs(5);

impl Player {
    /// A player with a number, which is also its lease id.
    pub fn new(store: Arc<dyn Store>, number: u128, lock: LockName) -> Self {
        let ask = Ask {
            lease_id: LeaseId::from_uuid(Uuid::from_u128(number)),
            holder: Holder::new(format!("player-{number}")).expect("a good holder"),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: Priority::default(),
            ttl: Ttl::from_secs(10),
            metadata: Metadata::default(),
            process: None,
        };
        Self { store, lock, ask, steal_after: None }
    }

    /// Its wake-ups while it waits.
    pub fn changes(&self) -> Changes {
        self.store.locks().changes(Some(&self.lock), &self.id())
    }

    /// Wants to share.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.ask.mode = Mode::Shared;
        self
    }

    /// Is one of several.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.ask.slots = Slots::new(slots).expect("good slots");
        self
    }

    /// Has a weight.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.ask.priority = Priority::new(priority).expect("a good priority");
        self
    }

    /// Steals what shows no sign of life for so many seconds.
    #[must_use]
    pub fn thief(mut self, seconds: u64) -> Self {
        self.steal_after = Some(Ttl::from_secs(seconds));
        self
    }

    /// Says a fact about itself.
    #[must_use]
    pub fn meta(mut self, key: &str, value: &str) -> Self {
        self.ask.metadata.set(key, value).expect("good metadata");
        self
    }

    /// Stands for a process of some boot.
    #[must_use]
    pub fn of_boot(mut self, boot: u128) -> Self {
        let boot = BootId(Uuid::from_u128(boot));
        self.ask.process = Some(Process { boot, pid_namespace: 0, members: Vec::new() });
        self
    }

    /// Its lease id.
    pub fn id(&self) -> LeaseId {
        self.ask.lease_id
    }

    /// Applies any operation to its lock.
    pub async fn apply(&self, op: LockOp) -> Outcome {
        self.store.locks().apply(&self.lock, &op).await.expect("the store answers")
    }

    /// The record of its lock.
    pub async fn record(&self) -> LockRecord {
        self.store.locks().get(&self.lock).await.expect("the store answers").expect("there is a record")
    }

    /// Looks at its lock as a waiter does.
    pub async fn peeks(&self) -> Peek {
        self.store.locks().peek(&self.lock, &self.id()).await.expect("the store answers")
    }

    /// Asks without waiting.
    pub async fn asks(&self) -> Outcome {
        self.ask_with(None).await
    }

    /// Asks and draws a ticket if need be.
    pub async fn asks_in_line(&self) -> Outcome {
        self.ask_with(Some(TICKET)).await
    }

    async fn ask_with(&self, queue: Option<Ttl>) -> Outcome {
        let ask = Arc::new(self.ask.clone());
        self.apply(LockOp::Acquire(Acquire { ask, queue, steal_after: self.steal_after })).await
    }

    /// Asks for a lease that lasts the given number of seconds, and must be granted it.
    pub async fn takes_for(&self, seconds: u64) -> Lease {
        let mut player = self.clone();
        player.ask.ttl = Ttl::from_secs(seconds);
        player.takes().await
    }

    /// Asks in line with a ticket that lives the given number of seconds, and must be queued.
    pub async fn queues_for(&self, seconds: u64) -> Queued {
        match self.ask_with(Some(Ttl::from_secs(seconds))).await {
            Outcome::Queued(queued) => queued,
            other => panic!("{} should have been queued, but: {other:?}", self.ask.holder),
        }
    }

    /// Asks and must be granted it.
    pub async fn takes(&self) -> Lease {
        match self.asks().await {
            Outcome::Granted(lease) => lease,
            other => panic!("{} should have been granted the lock, but: {other:?}", self.ask.holder),
        }
    }

    /// Asks and must be refused.
    pub async fn is_refused(&self) -> Conflict {
        match self.asks().await {
            Outcome::Busy(conflict) => conflict,
            other => panic!("{} should have been refused, but: {other:?}", self.ask.holder),
        }
    }

    /// Asks in line and must be queued.
    pub async fn queues(&self) -> Queued {
        match self.asks_in_line().await {
            Outcome::Queued(queued) => queued,
            other => panic!("{} should have been queued, but: {other:?}", self.ask.holder),
        }
    }

    /// Whether its lease is in the record.
    pub async fn holds(&self) -> bool {
        self.record().await.lease(&self.id()).is_some()
    }

    /// Renews a lease.
    pub async fn renews(&self, lease: &Lease) -> Outcome {
        self.apply(LockOp::Renew(Renew { lease_id: self.id(), token: lease.token, ttl: None })).await
    }

    /// Renews a lease, and has that written into the history.
    pub async fn renews_logged(&self, lease: &Lease) -> Outcome {
        let renew = Renew { lease_id: self.id(), token: lease.token, ttl: None };
        self.apply(LockOp::RenewLogged(renew)).await
    }

    /// Releases a lease.
    pub async fn releases(&self, lease: &Lease) -> Outcome {
        self.releases_with(lease.token, None).await
    }

    /// Releases with some token, kept for a while or not.
    pub async fn releases_with(&self, token: Token, at_least: Option<Ttl>) -> Outcome {
        self.apply(LockOp::Release(Release { lease_id: self.id(), token, at_least })).await
    }

    /// Gives up.
    pub async fn leaves(&self) -> Outcome {
        self.apply(LockOp::Leave(Leave { lease_id: self.id() })).await
    }

    /// Asks the holders to stop.
    pub async fn asks_for_release(&self) -> Outcome {
        let reason = Reason::new("deploy").ok();
        self.apply(LockOp::AskRelease(AskRelease { token: None, by: self.ask.holder.clone(), reason })).await
    }

    /// Takes the lock by force from the lease with this token.
    pub async fn forces(&self, token: Token) -> Outcome {
        let reason = Reason::new("stuck").expect("a good reason");
        self.apply(LockOp::ForceRelease(ForceRelease { token, by: self.ask.holder.clone(), reason })).await
    }
}
