//! Batched operations of many callers or of callers on another runtime: the same rules, fewer calls,
//! and dropped calls stay in order.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockName, LockOp, Outcome, Release};
use leasehold::store::redis::RedisStore;
use leasehold::store::{Clock, Cursor, EventRange, ListEvents, Store};
use leasehold::testing::{Fixture, TestClient, agrees_with_the_rules};
use tokio::runtime::Runtime;

use super::server::Server;
use super::support::{open, options, prefix};
use crate::engines::proxy::Proxy;
use crate::engines::support::engine_at;

/// Runtime on which stores are opened: callers on any other runtime use the background connection.
struct OtherRuntime(Option<Runtime>);

impl OtherRuntime {
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

impl Drop for OtherRuntime {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

async fn fresh() -> Fixture {
    let url = engine_at("redis");
    let (other_runtime, prefix, clock) = (OtherRuntime::start(), prefix(), crate::engines::support::clock());
    let (one, two) =
        (other_runtime.open(&url, &prefix, &clock).await, other_runtime.open(&url, &prefix, &clock).await);
    Fixture::new(one, two, clock, other_runtime)
}

mod locks {
    leasehold::lock_conformance!(crate::engines::redis::batching::fresh);
}

#[test]
fn it_agrees_with_the_rules() {
    agrees_with_the_rules(64, fresh);
}

async fn store_at(server: &Server) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(options(&server.url(), "leasehold")).await.unwrap())
}

fn player(store: &Arc<RedisStore>, number: u128, lock: &str) -> TestClient {
    TestClient::new(store.clone(), number, LockName::new(lock).unwrap())
}

fn acquire(player: &TestClient) -> LockOp {
    LockOp::Acquire(Acquire { request: Arc::new(player.request.clone()), queue: None, steal_after: None })
}

/// Sixteen clients acquire and release a lock of their own, `rounds` times.
async fn acquire_and_release(store: &Arc<RedisStore>, rounds: usize) {
    let busy: Vec<_> = (1..=16)
        .map(|number| {
            let player = player(store, number, &format!("lock-{number}"));
            tokio::spawn(async move {
                for _ in 0..rounds {
                    let lease = player.acquire().await;
                    assert!(matches!(player.release(&lease).await, Outcome::Released(_)));
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
    let server = Server::start(&[]).await;
    let store = store_at(&server).await;
    acquire_and_release(&store, 50).await;
    let calls = server.calls("evalsha").await;
    assert!(calls < 1_600 / 2, "{calls} calls for 1,600 operations");
    for number in 1..=16 {
        let lock = Some(LockName::new(format!("lock-{number}")).unwrap());
        let query = ListEvents::default().lock(lock).span(EventRange::After(Cursor::start())).limit(1000);
        let events = store.locks().history(&query).await.unwrap().items;
        assert_eq!(events.len(), 100);
        assert!(events.windows(2).all(|two| two[0].at <= two[1].at && two[0].token <= two[1].token));
    }
}

#[tokio::test]
async fn many_callers_survive_flushed_scripts() {
    let server = Server::start(&[]).await;
    let store = store_at(&server).await;
    let forget = async {
        for _ in 0..10 {
            let _: String = server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::join!(forget, acquire_and_release(&store, 50));
    let calls = server.calls("evalsha").await;
    assert!(calls < 1_600, "{calls}");
}

/// A key of another program is not changed, and does not affect the other operations of its batch.
#[tokio::test]
async fn an_error_of_one_lock_does_not_affect_its_batch() {
    let server = Server::start(&[]).await;
    let store = store_at(&server).await;
    let strange = player(&store, 99, "strange");
    strange.acquire().await;
    let keys: Vec<String> = server.command(&["KEYS", "*:lock:strange"]).await.unwrap();
    let _: u32 = server.command(&["DEL", &keys[0]]).await.unwrap();
    let _: u32 = server.command(&["RPUSH", &keys[0], "not ours"]).await.unwrap();
    let foreign = tokio::spawn(async move {
        for _ in 0..50 {
            let op = acquire(&strange);
            strange.store.locks().apply(&strange.lock, &op).await.unwrap_err();
        }
    });
    acquire_and_release(&store, 50).await;
    foreign.await.unwrap();
    let kept: Vec<String> = server.command(&["LRANGE", &keys[0], "0", "-1"]).await.unwrap();
    assert_eq!(kept, ["not ours"]);
}

/// A dropped call was never sent, or every later call for its lease also follows it on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leave_never_overtakes_an_acquire_that_was_dropped() {
    let server = Server::start(&[]).await;
    let store = store_at(&server).await;
    let stop = tokio_util::sync::CancellationToken::new();
    // Enough callers that operations are batched.
    let busy = {
        let (store, stop) = (store.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                acquire_and_release(&store, 5).await;
            }
        })
    };
    for turn in 0..300u64 {
        let mut player = player(&store, 100, &format!("dropped-{}", turn % 7));
        player.request.lease_id = leasehold::model::LeaseId::from_uuid(uuid::Uuid::now_v7());
        let timeout = Duration::from_micros(turn * 37 % 1_000);
        let _ = tokio::time::timeout(timeout, player.try_acquire()).await;
        assert!(matches!(player.withdraw().await, Outcome::Withdrawn));
        let after = store.locks().get(&player.lock).await.unwrap();
        assert!(after.is_none_or(|record| record.holders.is_empty()), "turn {turn}");
    }
    stop.cancel();
    busy.await.unwrap();
    // No dropped call took effect later.
    for number in 0..7 {
        let name = LockName::new(format!("dropped-{number}")).unwrap();
        let record = store.locks().get(&name).await.unwrap();
        assert!(record.is_none_or(|record| record.holders.is_empty()));
    }
}

/// Repeats an operation until the store answers.
async fn apply_until_answered(player: &TestClient, op: &LockOp) -> Outcome {
    loop {
        match player.store.locks().apply(&player.lock, op).await {
            Ok(outcome) => return outcome,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_survive_cut_connections() {
    let url = engine_at("redis");
    let proxy = Proxy::before(url.strip_prefix("redis://").unwrap().parse().unwrap());
    let through = options(&format!("redis://{}", proxy.address()), &prefix());
    let store = Arc::new(RedisStore::connect(through).await.unwrap());
    let busy: Vec<_> = (1..=16)
        .map(|number| {
            let mut player = player(&store, number, &format!("lock-{number}"));
            tokio::spawn(async move {
                for _ in 0..40 {
                    player.request.lease_id = leasehold::model::LeaseId::from_uuid(uuid::Uuid::now_v7());
                    let Outcome::Granted(lease) = apply_until_answered(&player, &acquire(&player)).await
                    else {
                        panic!("no other client uses this lock");
                    };
                    let (lease_id, token) = (player.id(), lease.token);
                    let release = LockOp::Release(Release { lease_id, token, at_least: None });
                    // The first release may have been executed although its answer was lost.
                    let outcome = apply_until_answered(&player, &release).await;
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
    tokio::time::timeout(Duration::from_mins(1), both).await.expect("every call ends");
    for number in 1..=16 {
        let record = player(&store, number, &format!("lock-{number}")).record().await;
        assert!(record.holders.is_empty(), "{record:?}");
    }
}
