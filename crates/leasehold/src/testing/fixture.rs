//! Fresh engine with two clients and a manual clock, and the callers that acquire its locks.

use std::any::Any;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::model::{
    Acquire, BootId, Conflict, ForceRelease, Holder, Lease, LeaseId, LockName, LockOp, LockRecord,
    LockRequest, Mode, Outcome, Priority, Process, Queued, Reason, Release, Renew, RequestRelease, Slots,
    Token, Ttl, Withdraw,
};
use crate::store::{Clock, Peek, Store, WaiterSubscription};

/// Fresh engine, accessed by two clients, with a manual clock.
pub struct Fixture {
    /// First client.
    pub one: Arc<dyn Store>,
    /// Second client of the same engine.
    pub two: Arc<dyn Store>,
    /// Clock of both clients.
    pub clock: Clock,
    /// Base of the lease ids, which are unique everywhere, also between tests that run
    /// concurrently.
    first_id: u128,
    _kept: Box<dyn Any + Send>,
}

impl Fixture {
    /// Creates a fixture; `kept` is dropped with it, for example a temporary folder.
    pub fn new(one: Arc<dyn Store>, two: Arc<dyn Store>, clock: Clock, kept: impl Any + Send) -> Self {
        let first_id = u128::from(fastrand::u64(1..)) << 64;
        Self { one, two, clock, first_id, _kept: Box::new(kept) }
    }

    /// Advances the clock.
    pub fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Advances the clock by this time, and by the clock uncertainty of the engine.
    pub fn advance_past(&self, millis: u64) {
        self.pass(millis);
        self.clock.advance(self.one.capabilities().clock_uncertainty);
    }

    /// Returns whether the engine has the capabilities that a case needs. If not, prints the first
    /// missing one, and adds the case to the file that `LEASEHOLD_TEST_NOT_APPLICABLE` names, from
    /// which a runner can report it: a test cannot tell the test harness that it was skipped.
    pub fn can(&self, case: &str, needs: &[&str]) -> bool {
        let capabilities = self.one.capabilities();
        let Some(what) = capabilities.lacks(needs) else { return true };
        println!("{case} does not apply: {} has not {what}", capabilities.engine);
        if let Some(path) = std::env::var_os("LEASEHOLD_TEST_NOT_APPLICABLE") {
            let line = format!("{}\t{case}\t{what}\n", capabilities.engine);
            // One write, so that lines of concurrent tests do not mix.
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the case can be reported");
        }
        false
    }

    /// Creates a caller for `lock` on one of the two clients: odd numbers use the first client,
    /// even numbers the second.
    pub fn client(&self, number: u128, lock: &str) -> TestClient {
        let store = if number.is_multiple_of(2) { &self.two } else { &self.one };
        let mut client =
            TestClient::new(store.clone(), number, LockName::new(lock).expect("a good name in a test"));
        client.request.lease_id = LeaseId::from_uuid(Uuid::from_u128(self.first_id + number));
        client
    }

    /// Creates several callers for the same lock.
    pub fn clients<const N: usize>(&self, lock: &str) -> [TestClient; N] {
        std::array::from_fn(|number| self.client(number as u128 + 1, lock))
    }
}

/// Caller in a test that acquires a lock. Its leases have a ttl of 10 s, its tickets of 5 s.
#[derive(Clone)]
pub struct TestClient {
    /// Client that the caller uses.
    pub store: Arc<dyn Store>,
    /// Lock that the caller acquires.
    pub lock: LockName,
    /// Request of the caller.
    pub request: LockRequest,
    steal_after: Option<Ttl>,
}

const TICKET: Ttl = Ttl::from_secs(5);
/// Maximum number of times that an operation is sent.
const MAX_REPEATS: u32 = 5;

impl TestClient {
    /// Creates a caller with a number, which is also its lease id.
    pub fn new(store: Arc<dyn Store>, number: u128, lock: LockName) -> Self {
        let lease_id = LeaseId::from_uuid(Uuid::from_u128(number));
        let holder = Holder::new(format!("client-{number}")).expect("a good holder");
        let request = LockRequest::new(lease_id, holder, Ttl::from_secs(10));
        Self { store, lock, request, steal_after: None }
    }

    /// Returns the subscription to the caller's notifications while it waits.
    pub fn subscribe(&self) -> WaiterSubscription {
        self.store.locks().subscribe_waiter(Some(&self.lock), &self.id())
    }

    /// Requests the lock in shared mode.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.request.mode = Mode::Shared;
        self
    }

    /// Requests one of this many slots of the lock.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.request.slots = Slots::new(slots).expect("good slots");
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.request.priority = Priority::new(priority).expect("a good priority");
        self
    }

    /// Steals leases that were not renewed for this many seconds.
    #[must_use]
    pub fn steal_after(mut self, seconds: u64) -> Self {
        self.steal_after = Some(Ttl::from_secs(seconds));
        self
    }

    /// Adds an entry to the metadata.
    #[must_use]
    pub fn meta(mut self, key: &str, value: &str) -> Self {
        self.request.metadata.set(key, value).expect("good metadata");
        self
    }

    /// Represents a process of this boot.
    #[must_use]
    pub fn of_boot(mut self, boot: u128) -> Self {
        let boot = BootId(Uuid::from_u128(boot));
        self.request.process = Some(Process { boot, pid_namespace: 0, members: Vec::new() });
        self
    }

    /// Returns the lease id.
    pub fn id(&self) -> LeaseId {
        self.request.lease_id
    }

    /// Applies an operation to the lock. Repeats one that may be repeated if the store does not answer in time, as
    /// on a busy machine.
    pub async fn apply(&self, op: LockOp) -> Outcome {
        for _ in 0..MAX_REPEATS {
            match self.store.locks().apply(&self.lock, &op).await {
                Err(error) if error.is_retryable() && op.is_repeatable() => {}
                answer => return answer.expect("the store answers"),
            }
        }
        panic!("the store does not answer {MAX_REPEATS} times");
    }

    /// Returns the record of the lock.
    pub async fn record(&self) -> LockRecord {
        self.store.locks().get(&self.lock).await.expect("the store answers").expect("there is a record")
    }

    /// Peeks at the lock as a waiter does.
    pub async fn peek(&self) -> Peek {
        self.store.locks().peek(&self.lock, &self.id()).await.expect("the store answers")
    }

    /// Requests the lock without waiting.
    pub async fn try_acquire(&self) -> Outcome {
        self.acquire_with(None).await
    }

    /// Requests the lock, and queues a ticket if it is held.
    pub async fn try_acquire_queued(&self) -> Outcome {
        self.acquire_with(Some(TICKET)).await
    }

    async fn acquire_with(&self, queue: Option<Ttl>) -> Outcome {
        let request = Arc::new(self.request.clone());
        self.apply(LockOp::Acquire(Acquire { request, queue, steal_after: self.steal_after })).await
    }

    /// Requests a lease that lasts the given number of seconds. Panics unless it is granted.
    pub async fn acquire_for(&self, seconds: u64) -> Lease {
        let mut client = self.clone();
        client.request.ttl = Ttl::from_secs(seconds);
        client.acquire().await
    }

    /// Requests the lock with a ticket that lives the given number of seconds. Panics unless it is
    /// queued.
    pub async fn expect_queued_for(&self, seconds: u64) -> Queued {
        match self.acquire_with(Some(Ttl::from_secs(seconds))).await {
            Outcome::Queued(queued) => queued,
            other => panic!("{} should have been queued, but: {other:?}", self.request.holder),
        }
    }

    /// Requests the lock. Panics unless it is granted.
    pub async fn acquire(&self) -> Lease {
        match self.try_acquire().await {
            Outcome::Granted(lease) => lease,
            other => panic!("{} should have been granted the lock, but: {other:?}", self.request.holder),
        }
    }

    /// Requests the lock. Panics unless it is refused.
    pub async fn expect_conflict(&self) -> Conflict {
        match self.try_acquire().await {
            Outcome::Conflict(conflict) => conflict,
            other => panic!("{} should have been refused, but: {other:?}", self.request.holder),
        }
    }

    /// Requests the lock with a ticket. Panics unless it is queued.
    pub async fn expect_queued(&self) -> Queued {
        match self.try_acquire_queued().await {
            Outcome::Queued(queued) => queued,
            other => panic!("{} should have been queued, but: {other:?}", self.request.holder),
        }
    }

    /// Returns whether the caller's lease is in the record.
    pub async fn holds(&self) -> bool {
        self.record().await.lease(&self.id()).is_some()
    }

    /// Renews a lease.
    pub async fn renew(&self, lease: &Lease) -> Outcome {
        self.apply(LockOp::Renew(Renew { lease_id: self.id(), token: lease.token, ttl: None })).await
    }

    /// Renews a lease, and records the renewal in the history.
    pub async fn renew_logged(&self, lease: &Lease) -> Outcome {
        let renew = Renew { lease_id: self.id(), token: lease.token, ttl: None };
        self.apply(LockOp::RenewLogged(renew)).await
    }

    /// Releases a lease.
    pub async fn release(&self, lease: &Lease) -> Outcome {
        self.release_with(lease.token, None).await
    }

    /// Releases the lease with this token, retained for `at_least` if given.
    pub async fn release_with(&self, token: Token, at_least: Option<Ttl>) -> Outcome {
        self.apply(LockOp::Release(Release { lease_id: self.id(), token, at_least })).await
    }

    /// Withdraws the request, and gives back the lease if it was granted.
    pub async fn withdraw(&self) -> Outcome {
        self.apply(LockOp::Withdraw(Withdraw { lease_id: self.id() })).await
    }

    /// Requests the holders to release the lock.
    pub async fn request_release(&self) -> Outcome {
        let reason = Reason::new("deploy").ok();
        self.apply(LockOp::RequestRelease(RequestRelease {
            token: None,
            by: self.request.holder.clone(),
            reason,
        }))
        .await
    }

    /// Force-releases the lease with this token.
    pub async fn force_release(&self, token: Token) -> Outcome {
        let reason = Reason::new("stuck").expect("a good reason");
        self.apply(LockOp::ForceRelease(ForceRelease { token, by: self.request.holder.clone(), reason }))
            .await
    }
}
