//! The compare-and-swap loop, over documents in memory.

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

/// Clients whose clocks are anywhere, on an engine that has none.
mod apart {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use async_trait::async_trait;
    use leasehold::Result;
    use leasehold::model::{LeaseId, LockName, Outcome, Timestamp, Ttl};
    use leasehold::store::memory::MemoryDocs;
    use leasehold::store::{
        Capabilities, Cas, Clock, Cursor, DocStore, Document, LeaseObservations, NewDocument, Page, PutIf,
        Store, Time,
    };
    use leasehold::testing::Player;
    use uuid::Uuid;

    struct Apart {
        docs: Arc<MemoryDocs>,
        clock: Clock,
        off: i64,
    }

    #[async_trait]
    impl DocStore for Apart {
        fn capabilities(&self) -> Capabilities {
            self.docs.capabilities()
        }
        fn url(&self) -> String {
            self.docs.url()
        }
        async fn get(&self, key: &str) -> Result<Option<Document>> {
            self.docs.get(key).await
        }
        async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
            self.docs.put_if(key, expected, draft).await
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
            let about = self.clock.now().as_micros().saturating_add_signed(self.off);
            Ok(Time::Watched { about: Timestamp::from_micros(about), past: None })
        }
    }

    const TTL: Duration = Duration::from_millis(60);

    /// Clients on machines whose clocks are off by so many seconds.
    fn players<const N: usize>(off: [i64; N]) -> [Player; N] {
        let (docs, clock) = (Arc::new(MemoryDocs::with_clock(Clock::system())), Clock::system());
        let base = u128::from(fastrand::u64(..)) << 64;
        std::array::from_fn(|number| {
            let docs = Apart { docs: docs.clone(), clock: clock.clone(), off: off[number] * 1_000_000 };
            let store: Arc<dyn Store> =
                Arc::new(Cas::with_sights(docs, LeaseObservations::default()).unwrap());
            let mut player = Player::new(store, base + number as u128, LockName::new("lock").unwrap());
            player.ask.ttl = Ttl::new(TTL).unwrap();
            player
        })
    }

    /// Each holds, renews, goes on or dies as it likes, and writes down until when it could count on its lease.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn there_are_never_two_holders_and_the_dead_are_followed() {
        let players = players([0, 3600, -3600, 1, -1, 86_400]);
        let end = Instant::now() + Duration::from_secs(3);
        let lives = players.map(|mut player| {
            tokio::spawn(async move {
                let (mut held, mut is_new) = (Vec::new(), true);
                while Instant::now() < end {
                    if std::mem::take(&mut is_new) {
                        // Whoever asks again with the same id is the same, and has the same lease.
                        let id = u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..));
                        player.ask.lease_id = LeaseId::from_uuid(Uuid::from_u128(id));
                    }
                    let sent = Instant::now();
                    let Outcome::Granted(lease) = player.asks_in_line().await else {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        continue;
                    };
                    is_new = true;
                    let mut until = sent + lease.expires_at.since(lease.renewed_at);
                    let since = Instant::now();
                    if since >= until {
                        continue; // An answer that took longer than the lease lasts is no acquisition.
                    }
                    for _ in 0..fastrand::u32(0..4) {
                        tokio::time::sleep(TTL / 3).await;
                        let sent = Instant::now();
                        match player.renews(&lease).await {
                            Outcome::Renewed(lease) if Instant::now() < until => {
                                until = sent + lease.expires_at.since(lease.renewed_at);
                            }
                            _ => break,
                        }
                    }
                    let dies = fastrand::u8(0..3) == 0;
                    let stop = if dies { until } else { until.min(Instant::now()) };
                    held.push((lease.token, since, stop));
                    if dies {
                        tokio::time::sleep(until.saturating_duration_since(Instant::now())).await;
                    } else {
                        player.releases(&lease).await;
                    }
                }
                held
            })
        });
        let mut held = Vec::new();
        for life in lives {
            held.extend(life.await.unwrap());
        }
        held.sort();
        assert!(held.len() > 15, "only {} were granted", held.len());
        for pair in held.windows(2) {
            let ((one, _, until), (other, since, _)) = (pair[0], pair[1]);
            assert!(one < other, "a token came twice");
            assert!(until <= since, "two holders for {:?}", until - since);
        }
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_does_not_steal_from_the_living() {
        let [mut a, b] = players([0, 3600]);
        a.ask.ttl = Ttl::from_secs(60);
        let thief = b.thief(1);
        let lease = a.takes().await;
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(1500) {
            thief.is_refused().await;
            a.renews(&lease).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // It shows no sign of life from here on.
        thief.is_refused().await;
        let seen = Instant::now();
        while !matches!(thief.asks().await, Outcome::Granted(_)) {
            assert!(seen.elapsed() < Duration::from_secs(3), "never stolen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(seen.elapsed() >= Duration::from_millis(900), "stolen after {:?}", seen.elapsed());
    }

    /// Counted: one slot's holder lives on with a clock far behind, the other's has died with a clock far ahead.
    #[tokio::test]
    async fn the_dead_one_of_two_is_followed_although_the_other_lives() {
        let [a, b, c] = players([-3600, 3600, 0]).map(|player| player.slots(2));
        let living = a.takes().await;
        b.takes().await;
        let started = Instant::now();
        while !matches!(c.asks().await, Outcome::Granted(_)) {
            assert!(matches!(a.renews(&living).await, Outcome::Renewed(_)), "the living one was ended");
            assert!(started.elapsed() < 20 * TTL, "never followed");
            tokio::time::sleep(TTL / 10).await;
        }
        assert!(started.elapsed() >= TTL, "followed while it may have lived");
    }

    #[tokio::test]
    async fn the_callers_of_one_process_do_not_clash() {
        let [a] = players([0]);
        let asking: Vec<_> = (1..200_u128)
            .map(|number| {
                let mut player = a.clone().shared();
                player.ask.lease_id =
                    LeaseId::from_uuid(Uuid::from_u128(player.id().as_uuid().as_u128() + number));
                tokio::spawn(async move { matches!(player.asks().await, Outcome::Granted(_)) })
            })
            .collect();
        for asked in asking {
            assert!(asked.await.unwrap());
        }
    }
}
