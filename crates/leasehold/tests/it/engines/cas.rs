//! Tests of the compare-and-swap loop, over documents in memory.

use std::sync::Arc;

use leasehold::store::Cas;
use leasehold::store::memory::MemoryDocs;
use leasehold::testing::{Fixture, agrees_with_the_rules};

async fn fresh() -> Fixture {
    let clock = super::support::clock();
    let store = Arc::new(Cas::new(MemoryDocs::with_clock(clock.clone())).unwrap());
    Fixture::new(store.clone(), store, clock, ())
}

mod locks {
    leasehold::lock_conformance!(crate::engines::cas::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(256, fresh);
}

/// Clients with skewed clocks, on an engine without a clock.
mod clock_skew {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use async_trait::async_trait;
    use leasehold::Result;
    use leasehold::model::{LeaseId, LockName, Outcome, Timestamp, Ttl};
    use leasehold::store::memory::MemoryDocs;
    use leasehold::store::{
        Capabilities, Cas, Clock, Cursor, Document, DocumentStore, LeaseObservations, NewDocument, Page,
        PutIf, Store, Time,
    };
    use leasehold::testing::TestClient;
    use uuid::Uuid;

    struct SkewedDocs {
        docs: Arc<MemoryDocs>,
        clock: Clock,
        /// Offset of this client's clock, in µs.
        offset: i64,
    }

    #[async_trait]
    impl DocumentStore for SkewedDocs {
        fn capabilities(&self) -> Capabilities {
            self.docs.capabilities()
        }
        fn url(&self) -> String {
            self.docs.url()
        }
        async fn get(&self, key: &str) -> Result<Option<Document>> {
            self.docs.get(key).await
        }
        async fn put_if(&self, key: &str, expected: Option<u64>, document: NewDocument) -> Result<PutIf> {
            self.docs.put_if(key, expected, document).await
        }
        async fn list(
            &self,
            prefix: &str,
            after: Option<Cursor>,
            limit: u32,
        ) -> Result<Page<(String, Document)>> {
            self.docs.list(prefix, after, limit).await
        }
        async fn time(&self) -> Result<Time> {
            let about = self.clock.now().as_micros().saturating_add_signed(self.offset);
            Ok(Time::Observed { estimate: Timestamp::from_micros(about), lower_bound: None })
        }
    }

    const TTL: Duration = Duration::from_millis(60);

    /// Clients on machines whose clocks have these offsets, in seconds.
    fn players<const N: usize>(offsets: [i64; N]) -> [TestClient; N] {
        let (docs, clock) = (Arc::new(MemoryDocs::with_clock(Clock::system())), Clock::system());
        let base = u128::from(fastrand::u64(..)) << 64;
        std::array::from_fn(|number| {
            let docs =
                SkewedDocs { docs: docs.clone(), clock: clock.clone(), offset: offsets[number] * 1_000_000 };
            let store: Arc<dyn Store> =
                Arc::new(Cas::with_observations(docs, LeaseObservations::default()).unwrap());
            let mut player = TestClient::new(store, base + number as u128, LockName::new("lock").unwrap());
            player.request.ttl = Ttl::new(TTL).unwrap();
            player
        })
    }

    /// Each client acquires, renews, releases or stops at random, and records until when its lease was
    /// valid.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn there_are_never_two_holders_and_dead_holders_are_replaced() {
        let players = players([0, 3600, -3600, 1, -1, 86_400]);
        let end = Instant::now() + Duration::from_secs(3);
        let clients = players.map(|mut player| {
            tokio::spawn(async move {
                let (mut held, mut is_new) = (Vec::new(), true);
                while Instant::now() < end {
                    if std::mem::take(&mut is_new) {
                        // A request with the same id gets the same lease, so a new attempt needs a new id.
                        let id = u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..));
                        player.request.lease_id = LeaseId::from_uuid(Uuid::from_u128(id));
                    }
                    let sent = Instant::now();
                    let Outcome::Granted(lease) = player.try_acquire_queued().await else {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        continue;
                    };
                    is_new = true;
                    let mut until = sent + lease.expires_at.since(lease.renewed_at);
                    let since = Instant::now();
                    if since >= until {
                        continue; // The lease expired before the response arrived.
                    }
                    for _ in 0..fastrand::u32(0..4) {
                        tokio::time::sleep(TTL / 3).await;
                        let sent = Instant::now();
                        match player.renew(&lease).await {
                            Outcome::Renewed(lease) if Instant::now() < until => {
                                until = sent + lease.expires_at.since(lease.renewed_at);
                            }
                            _ => break,
                        }
                    }
                    let abandons = fastrand::u8(0..3) == 0;
                    let stop = if abandons { until } else { until.min(Instant::now()) };
                    held.push((lease.token, since, stop));
                    if abandons {
                        tokio::time::sleep(until.saturating_duration_since(Instant::now())).await;
                    } else {
                        player.release(&lease).await;
                    }
                }
                held
            })
        });
        let mut held = Vec::new();
        for client in clients {
            held.extend(client.await.unwrap());
        }
        held.sort();
        assert!(held.len() > 15, "only {} were granted", held.len());
        for pair in held.windows(2) {
            let ((one, _, until), (other, since, _)) = (pair[0], pair[1]);
            assert!(one < other, "a token was granted twice");
            assert!(until <= since, "two holders at once for {:?}", until - since);
        }
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_does_not_steal_a_renewed_lease() {
        let [mut a, b] = players([0, 3600]);
        a.request.ttl = Ttl::from_secs(60);
        let thief = b.steal_after(1);
        let lease = a.acquire().await;
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(1500) {
            thief.expect_conflict().await;
            a.renew(&lease).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // The holder stops renewing here.
        thief.expect_conflict().await;
        let seen = Instant::now();
        while !matches!(thief.try_acquire().await, Outcome::Granted(_)) {
            assert!(seen.elapsed() < Duration::from_secs(3), "never stolen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(seen.elapsed() >= Duration::from_millis(900), "stolen after {:?}", seen.elapsed());
    }

    /// Two slots: one holder renews with a clock far behind, the other one died with a clock far ahead.
    #[tokio::test]
    async fn a_dead_holder_is_replaced_while_the_other_slot_is_renewed() {
        let [a, b, c] = players([-3600, 3600, 0]).map(|player| player.slots(2));
        let renewed = a.acquire().await;
        b.acquire().await;
        let started = Instant::now();
        while !matches!(c.try_acquire().await, Outcome::Granted(_)) {
            assert!(matches!(a.renew(&renewed).await, Outcome::Renewed(_)), "the renewed lease was ended");
            assert!(started.elapsed() < 20 * TTL, "the dead holder was never replaced");
            tokio::time::sleep(TTL / 10).await;
        }
        assert!(started.elapsed() >= TTL, "replaced before the lease had expired");
    }

    #[tokio::test]
    async fn concurrent_callers_of_one_process_do_not_conflict() {
        let [a] = players([0]);
        let calls: Vec<_> = (1..200_u128)
            .map(|number| {
                let mut player = a.clone().shared();
                player.request.lease_id =
                    LeaseId::from_uuid(Uuid::from_u128(player.id().as_uuid().as_u128() + number));
                tokio::spawn(async move { matches!(player.try_acquire().await, Outcome::Granted(_)) })
            })
            .collect();
        for call in calls {
            assert!(call.await.unwrap());
        }
    }
}

/// A response is lost and the write is sent again. Meanwhile others write so often that the document no
/// longer names the write.
mod lost_responses {
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use leasehold::model::{EventKind, Holder, LockName, LockOp, Reason, Release};
    use leasehold::store::memory::MemoryDocs;
    use leasehold::store::{
        Capabilities, Cas, Clock, Cursor, Document, DocumentStore, ListEvents, NewDocument, Page, PutIf,
        Store, Time,
    };
    use leasehold::testing::TestClient;
    use leasehold::{Leasehold, Result};

    type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

    struct ResendingDocs {
        docs: Arc<MemoryDocs>,
        /// What others do before the next write is sent again; otherwise it is sent once.
        between: Arc<Mutex<Option<Work>>>,
    }

    #[async_trait]
    impl DocumentStore for ResendingDocs {
        fn capabilities(&self) -> Capabilities {
            self.docs.capabilities()
        }
        fn url(&self) -> String {
            self.docs.url()
        }
        async fn get(&self, key: &str) -> Result<Option<Document>> {
            self.docs.get(key).await
        }
        async fn put_if(&self, key: &str, expected: Option<u64>, document: NewDocument) -> Result<PutIf> {
            let between = self.between.lock().unwrap().take();
            if let Some(between) = between {
                self.docs.put_if(key, expected, document.clone()).await?;
                between.await;
            }
            self.docs.put_if(key, expected, document).await
        }
        async fn list(
            &self,
            prefix: &str,
            after: Option<Cursor>,
            limit: u32,
        ) -> Result<Page<(String, Document)>> {
            self.docs.list(prefix, after, limit).await
        }
        async fn time(&self) -> Result<Time> {
            self.docs.time().await
        }
    }

    /// Two clients of one store. The first one sends a write twice.
    struct Lab {
        one: TestClient,
        two: TestClient,
        leasehold: Leasehold,
        between: Arc<Mutex<Option<Work>>>,
    }

    impl Lab {
        fn new() -> Self {
            let docs = Arc::new(MemoryDocs::with_clock(Clock::system()));
            let between = Arc::<Mutex<Option<Work>>>::default();
            let base = u128::from(fastrand::u64(..)) << 64;
            let client = |number: u128, between| {
                let docs = ResendingDocs { docs: docs.clone(), between };
                let store: Arc<dyn Store> = Arc::new(Cas::new(docs).unwrap());
                TestClient::new(store, base + number, LockName::new("lock").unwrap())
            };
            let (one, two) = (client(1, between.clone()), client(2, Arc::default()));
            let leasehold = Leasehold::with_store(one.store.clone()).unwrap();
            Self { one, two, leasehold, between }
        }

        /// Loses the response to the next write of the first client. Before the write is sent again, the
        /// second client acquires the lock and renews its lease.
        fn lose_a_response_until_the_other_has_acquired(&self) {
            let two = self.two.clone();
            *self.between.lock().unwrap() = Some(Box::pin(async move {
                let lease = two.acquire().await;
                for _ in 0..8 {
                    two.renew(&lease).await;
                }
            }));
        }
    }

    #[tokio::test]
    async fn a_release_is_in_doubt_and_then_a_success() {
        let lab = Lab::new();
        let lease = lab.one.acquire().await;
        lab.lose_a_response_until_the_other_has_acquired();
        let release = Release { lease_id: lab.one.id(), token: lease.token, at_least: None };
        let error = lab.one.store.locks().apply(&lab.one.lock, &LockOp::Release(release)).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("STORE_UNAVAILABLE", true), "{error}");

        let lab = Lab::new();
        let lease = lab.one.acquire().await;
        lab.lose_a_response_until_the_other_has_acquired();
        lab.leasehold.locks().release(&lab.one.lock, lab.one.id(), lease.token).await.unwrap();
        assert!(lab.two.holds().await);
    }

    #[tokio::test]
    async fn a_forced_release_is_a_success() {
        let lab = Lab::new();
        let lease = lab.one.acquire().await;
        lab.lose_a_response_until_the_other_has_acquired();
        let (by, reason) = (Holder::new("admin").unwrap(), Reason::new("stuck").unwrap());
        lab.leasehold.locks().force_release(&lab.one.lock, lease.token, by, reason).await.unwrap();
        assert!(lab.two.holds().await);
    }

    #[tokio::test]
    async fn a_holder_is_asked_once() {
        let lab = Lab::new();
        let (two, lease) = (lab.two.clone(), lab.two.acquire().await);
        *lab.between.lock().unwrap() = Some(Box::pin(async move {
            for _ in 0..9 {
                two.renew(&lease).await;
            }
        }));
        let by = Holder::new("admin").unwrap();
        assert_eq!(lab.leasehold.locks().request_release(&lab.one.lock, by, None).await.unwrap(), 1);
        let history = lab.one.store.locks().history(&ListEvents::default()).await.unwrap().items;
        let requests = history.iter().filter(|event| event.kind == EventKind::ReleaseRequested);
        assert_eq!(requests.count(), 1);
    }

    /// A conflict with many writes of others alone: the client has not seen the lock for long.
    #[tokio::test]
    async fn a_lease_that_has_ended_otherwise_is_not_held() {
        let lab = Lab::new();
        let lease = lab.one.acquire().await;
        let mut elsewhere = lab.one.clone();
        elsewhere.store = lab.two.store.clone();
        elsewhere.force_release(lease.token).await;
        let held = lab.two.acquire().await;
        for _ in 0..8 {
            lab.two.renew(&held).await;
        }
        let locks = lab.leasehold.locks();
        let error = locks.release(&lab.one.lock, lab.one.id(), lease.token).await.unwrap_err();
        assert_eq!(error.code(), "LOCK_NOT_HELD", "{error}");
    }
}
