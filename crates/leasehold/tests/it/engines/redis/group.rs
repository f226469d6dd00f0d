//! Operations that are sent together, because many callers wait or because they come from another runtime: the same rules,
//! fewer calls, and what is dropped stays in order.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockName, LockOp, Outcome, Release};
use leasehold::store::redis::RedisStore;
use leasehold::store::{Clock, Cursor, EventRange, ListEvents, Store};
use leasehold::testing::{Fixture, Player, agrees_with_the_rules};
use tokio::runtime::Runtime;

use super::private::Server;
use super::support::{open, options, prefix};
use crate::engines::proxy::Proxy;
use crate::engines::support::engine_at;

/// A runtime of its own, in which stores are opened: whoever calls them from elsewhere takes the far line.
struct Elsewhere(Option<Runtime>);

impl Elsewhere {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self(Some(runtime.unwrap()))
    }

    async fn open(&self, url: &str, prefix: &str, clock: &Clock) -> Arc<RedisStore> {
        let (url, prefix, clock) = (url.to_owned(), prefix.to_owned(), clock.clone());
        let runtime = self.0.as_ref().unwrap();
        runtime.spawn(async move { open(&url, &prefix, &clock).await }).await.unwrap()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

async fn fresh() -> Fixture {
    let Some(url) = engine_at("redis") else {
        // Skipped by name: the case runs on the rules alone.
        let clock = crate::engines::support::clock();
        let store = Arc::new(leasehold::store::memory::MemoryStore::with_clock(clock.clone()));
        return Fixture::new(store.clone(), store, clock, ());
    };
    let (elsewhere, prefix, clock) = (Elsewhere::start(), prefix(), crate::engines::support::clock());
    let (one, two) =
        (elsewhere.open(&url, &prefix, &clock).await, elsewhere.open(&url, &prefix, &clock).await);
    Fixture::new(one, two, clock, elsewhere)
}

mod locks {
    leasehold::lock_conformance!(crate::engines::redis::group::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(64, fresh);
}

async fn store_at(server: &Server) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(options(&server.url(), "leasehold")).await.unwrap())
}

fn player(store: &Arc<RedisStore>, number: u128, lock: &str) -> Player {
    Player::new(store.clone(), number, LockName::new(lock).unwrap())
}

fn acquire(player: &Player) -> LockOp {
    LockOp::Acquire(Acquire { ask: Arc::new(player.ask.clone()), queue: None, steal_after: None })
}

/// Sixteen take and release a lock of their own, again and again.
async fn many_turns(store: &Arc<RedisStore>, turns: usize) {
    let busy: Vec<_> = (1..=16)
        .map(|number| {
            let player = player(store, number, &format!("lock-{number}"));
            tokio::spawn(async move {
                for _ in 0..turns {
                    let lease = player.takes().await;
                    assert!(matches!(player.releases(&lease).await, Outcome::Released(_)));
                }
            })
        })
        .collect();
    for one in busy {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn many_callers_share_calls_and_no_event_is_missing() {
    let Some(server) = Server::start(&[]).await else { return };
    let store = store_at(&server).await;
    many_turns(&store, 50).await;
    let calls = server.calls("evalsha").await;
    assert!(calls < 1_600 / 2, "{calls} calls for 1,600 operations");
    for number in 1..=16 {
        let lock = Some(LockName::new(format!("lock-{number}")).unwrap());
        let ask = ListEvents { lock, span: EventRange::After(Cursor::start()), limit: 1000 };
        let events = store.locks().history(&ask).await.unwrap().items;
        assert_eq!(events.len(), 100);
        assert!(events.windows(2).all(|two| two[0].at <= two[1].at && two[0].token <= two[1].token));
    }
}

#[tokio::test]
async fn many_callers_do_not_mind_that_the_server_forgets_its_scripts() {
    let Some(server) = Server::start(&[]).await else { return };
    let store = store_at(&server).await;
    let forget = async {
        for _ in 0..10 {
            let _: String = server.says(&["SCRIPT", "FLUSH"]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::join!(forget, many_turns(&store, 50));
    let calls = server.calls("evalsha").await;
    assert!(calls < 1_600, "{calls}");
}

/// A key that somebody else has written is left alone, and those who are sent together with it do not notice.
#[tokio::test]
async fn what_is_wrong_with_one_lock_is_nothing_to_the_others() {
    let Some(server) = Server::start(&[]).await else { return };
    let store = store_at(&server).await;
    let strange = player(&store, 99, "strange");
    strange.takes().await;
    let keys: Vec<String> = server.says(&["KEYS", "*:lock:strange"]).await.unwrap();
    let _: u32 = server.says(&["DEL", &keys[0]]).await.unwrap();
    let _: u32 = server.says(&["RPUSH", &keys[0], "not ours"]).await.unwrap();
    let wrong = tokio::spawn(async move {
        for _ in 0..50 {
            let op = acquire(&strange);
            strange.store.locks().apply(&strange.lock, &op).await.unwrap_err();
        }
    });
    many_turns(&store, 50).await;
    wrong.await.unwrap();
    let kept: Vec<String> = server.says(&["LRANGE", &keys[0], "0", "-1"]).await.unwrap();
    assert_eq!(kept, ["not ours"]);
}

/// A call that is dropped was never sent, or whatever follows for its lease follows it on the server too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leave_never_overtakes_an_acquire_that_was_dropped() {
    let Some(server) = Server::start(&[]).await else { return };
    let store = store_at(&server).await;
    let stop = tokio_util::sync::CancellationToken::new();
    // So many callers that calls are sent together.
    let busy = {
        let (store, stop) = (store.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                many_turns(&store, 5).await;
            }
        })
    };
    for turn in 0..300u64 {
        let mut player = player(&store, 100, &format!("dropped-{}", turn % 7));
        player.ask.lease_id = leasehold::model::LeaseId::from_uuid(uuid::Uuid::now_v7());
        let patience = Duration::from_micros(turn * 37 % 1_000);
        let _ = tokio::time::timeout(patience, player.asks()).await;
        assert!(matches!(player.leaves().await, Outcome::Left));
        let after = store.locks().get(&player.lock).await.unwrap();
        assert!(after.is_none_or(|record| record.holders.is_empty()), "turn {turn}");
    }
    stop.cancel();
    busy.await.unwrap();
    // What had been dropped has not come back later.
    for number in 0..7 {
        let name = LockName::new(format!("dropped-{number}")).unwrap();
        let record = store.locks().get(&name).await.unwrap();
        assert!(record.is_none_or(|record| record.holders.is_empty()));
    }
}

/// Asks until the store answers: what was cut off may be asked again.
async fn surely(player: &Player, op: &LockOp) -> Outcome {
    loop {
        match player.store.locks().apply(&player.lock, op).await {
            Ok(outcome) => return outcome,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_get_over_connections_that_are_cut() {
    let Some(url) = engine_at("redis") else { return };
    let proxy = Proxy::before(url.strip_prefix("redis://").unwrap().parse().unwrap());
    let through = options(&format!("redis://{}", proxy.address()), &prefix());
    let store = Arc::new(RedisStore::connect(through).await.unwrap());
    let busy: Vec<_> = (1..=16)
        .map(|number| {
            let mut player = player(&store, number, &format!("lock-{number}"));
            tokio::spawn(async move {
                for _ in 0..40 {
                    player.ask.lease_id = leasehold::model::LeaseId::from_uuid(uuid::Uuid::now_v7());
                    let Outcome::Granted(lease) = surely(&player, &acquire(&player)).await else {
                        panic!("nobody else wants it");
                    };
                    let (lease_id, token) = (player.id(), lease.token);
                    let release = LockOp::Release(Release { lease_id, token, at_least: None });
                    // The first release may have been made and its answer cut off.
                    let outcome = surely(&player, &release).await;
                    assert!(matches!(outcome, Outcome::Released(_) | Outcome::NotHeld(_)), "{outcome:?}");
                }
            })
        })
        .collect();
    let all = async {
        for one in busy {
            one.await.unwrap();
        }
    };
    let cut = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            proxy.cut_all();
        }
    };
    let both = async { tokio::join!(all, cut) };
    tokio::time::timeout(Duration::from_mins(1), both).await.expect("nobody waits for ever");
    for number in 1..=16 {
        let record = player(&store, number, &format!("lock-{number}")).record().await;
        assert!(record.holders.is_empty(), "{record:?}");
    }
}
