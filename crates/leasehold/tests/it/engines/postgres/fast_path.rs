//! Fast path: one statement, for one lock or for many, with the same results as the rules.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{
    Acquire, ForceRelease, LockName, LockOp, LockRecord, Outcome, Reason, Release, Renew, RequestRelease,
    Token, Ttl, Withdraw,
};
use leasehold::store::{Cursor, EventRange, ListEvents, LockStore, Store};
use leasehold::testing::TestClient;
use tokio::task::JoinSet;

use super::faults::through_proxy;
use super::schema::{Schema, last_statements};
use crate::engines::proxy::Fault;
use crate::engines::support::clock;

fn player(store: &Arc<impl Store>, number: u128, lock: &str) -> TestClient {
    let mut player = TestClient::new(store.clone(), number, LockName::new(lock).unwrap());
    player.request.lease_id = leasehold::model::LeaseId::from_uuid(uuid::Uuid::now_v7());
    player
}

#[tokio::test]
async fn an_uncontended_cycle_is_one_statement_each() {
    let schema = Schema::new();
    let application = schema.name.clone();
    let settings = format!("pool=1&application_name={application}");
    let options = schema.options(&settings);
    let store = Arc::new(leasehold::store::postgres::PostgresStore::connect(options).await.unwrap());
    let client = schema.client().await;
    let one = player(&store, 1, "lock");
    // The first operation of each kind prepares its statement; a new lock takes the same path as an existing one.
    for round in 0..2 {
        let lease = one.acquire().await;
        let statements = last_statements(&client, &application).await;
        assert!(statements.last().unwrap().starts_with("WITH done AS"), "acquire {round}: {statements:?}");
        assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_)));
        let statements = last_statements(&client, &application).await;
        assert!(statements.last().unwrap().starts_with("INSERT INTO"), "renew {round}: {statements:?}");
        assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
        let statements = last_statements(&client, &application).await;
        assert!(
            statements.last().unwrap().contains("layout = 0, changed_at"),
            "release {round}: {statements:?}"
        );
        assert_eq!(statements.len(), 1, "one connection for all operations");
    }
    // The lock is held: the slow path decides, and its transaction ends although no caller waits for the end.
    one.acquire().await;
    player(&store, 2, "lock").expect_conflict().await;
    while last_statements(&client, &application).await.last().unwrap() != "ROLLBACK" {
        tokio::task::yield_now().await;
    }
}

/// Two processes with many callers each: statements for many locks, and an independent history of each lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_gives_the_same_results_as_single_operations() {
    let schema = Schema::new();
    let clock = clock();
    let stores = [schema.store_at(&clock, "pool=2").await, schema.store_at(&clock, "pool=1").await];
    let mut callers = JoinSet::new();
    for number in 0..64_u128 {
        let player = player(&stores[usize::from(number % 3 == 0)], number, &format!("lock-{number}"));
        callers.spawn(async move {
            for _ in 0..5 {
                let lease = player.acquire().await;
                let Outcome::Renewed(renewed) = player.renew(&lease).await else { panic!("not renewed") };
                assert_eq!((renewed.renewals, renewed.token), (1, lease.token));
                let Outcome::Released(released) = player.release(&lease).await else {
                    panic!("not released")
                };
                assert_eq!(released, renewed);
                assert!(matches!(player.release(&lease).await, Outcome::NotHeld(_)));
            }
            player
        });
    }
    for player in callers.join_all().await {
        let query = ListEvents::default()
            .lock(player.lock.clone())
            .span(EventRange::After(Cursor::start()))
            .limit(100);
        let events = stores[0].history(&query).await.unwrap().items;
        let kinds: Vec<_> = events.iter().map(|event| event.kind.to_string()).collect();
        assert_eq!(kinds, ["acquired", "released"].repeat(5), "{}", player.lock);
        assert!(events.is_sorted_by_key(|event| event.token));
        assert_eq!(player.record().await.version, 15);
    }
}

/// Random operations on twelve locks at a time, so that they share one statement: each result is that of the rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_agree_with_the_rules() {
    let schema = Schema::new();
    let clock = clock();
    let store = schema.store_at(&clock, "pool=1").await;
    let mut dice = fastrand::Rng::with_seed(20);
    let mut locks: Vec<_> = (0..12)
        .map(|number| {
            let clients = [0, 1].map(|other| player(&store, 2 * number + other, &format!("lock-{number}")));
            let record = LockRecord::new(clients[0].lock.clone());
            (clients, record, Vec::new())
        })
        .collect();
    for round in 0..60 {
        clock.advance(Duration::from_millis(dice.u64(0..5000)));
        let mut answers = Vec::new();
        for (clients, record, events) in &mut locks {
            let caller = dice.usize(0..2);
            let op = random_op(&mut dice, &clients[caller], record);
            let expected = record.apply(&op, clock.now());
            events.extend(expected.events);
            let (store, name) = (store.clone(), record.name.clone());
            let answer = tokio::spawn(async move { store.apply(&name, &op).await.unwrap() });
            answers.push((answer, expected.outcome));
        }
        for (answer, expected) in answers {
            assert_eq!(answer.await.unwrap(), expected, "round {round}");
        }
        for (clients, record, _) in &locks {
            let expected = (record.version > 0).then(|| record.clone());
            assert_eq!(store.get(&clients[0].lock).await.unwrap(), expected, "round {round}");
        }
    }
    for (_, record, events) in locks {
        let query =
            ListEvents::default().lock(record.name).span(EventRange::After(Cursor::start())).limit(1000);
        assert_eq!(store.history(&query).await.unwrap().items, events);
    }
}

fn random_op(dice: &mut fastrand::Rng, player: &TestClient, record: &LockRecord) -> LockOp {
    let lease_id = player.id();
    let held = record.lease(&lease_id).map(|lease| lease.token);
    let token = if dice.u8(0..8) == 0 { Token::default() } else { held.unwrap_or(record.token) };
    match dice.u8(0..6) {
        0..3 => {
            let mut player = player.clone().slots(dice.u32(1..3)).priority(dice.i32(-1..2));
            if dice.bool() {
                player = player.meta("user", "ada");
            }
            if dice.u8(0..4) == 0 {
                player = player.shared();
            }
            LockOp::Acquire(Acquire { request: Arc::new(player.request), queue: None, steal_after: None })
        }
        3 => {
            let ttl = dice.bool().then(|| Ttl::from_secs(dice.u64(1..20)));
            LockOp::Renew(Renew { lease_id, token, ttl })
        }
        _ => LockOp::Release(Release { lease_id, token, at_least: None }),
    }
}

/// Operations on a lock without a row that are executed together: those that create nothing are answered, and the acquire
/// behind them is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_behind_an_operation_that_creates_nothing_is_granted() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "pool=1").await;
    let mut busy = player(&store, 1, "busy");
    busy.request.ttl = Ttl::from_secs(60);
    let lease = busy.acquire().await;
    let (lease_id, token) = (player(&store, 2, "busy").id(), lease.token);
    let (by, reason) = (busy.request.holder.clone(), Reason::new("stuck").unwrap());
    let ops = [
        LockOp::Withdraw(Withdraw { lease_id }),
        LockOp::RequestRelease(RequestRelease { token: None, by: by.clone(), reason: None }),
        LockOp::ForceRelease(ForceRelease { token, by, reason }),
        LockOp::Release(Release { lease_id, token, at_least: Some(Ttl::from_secs(1)) }),
    ];
    for (number, op) in ops.into_iter().enumerate() {
        let caller = player(&store, 3, &format!("new-{number}"));
        let expected = LockRecord::new(caller.lock.clone()).apply(&op, clock().now()).outcome;
        // The renewal occupies the only connection until the fault ends, so the other operations wait for it.
        proxy.set(Fault::BlackHole);
        let (renewed, answer, granted, ()) = tokio::join!(
            biased;
            busy.renew(&lease),
            caller.apply(op),
            caller.try_acquire(),
            async { proxy.set(Fault::None) },
        );
        assert!(matches!(renewed, Outcome::Renewed(_)), "{number}: {renewed:?}");
        assert_eq!(answer, expected, "{number}");
        assert!(matches!(granted, Outcome::Granted(_)), "{number}: {granted:?}");
    }
}

/// Several processes request the same locks, in one statement each: there is no deadlock, and each lock has one holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_for_the_same_locks_do_not_deadlock() {
    let schema = Schema::new();
    let mut callers = JoinSet::new();
    for _ in 0..3 {
        let store = schema.store().await;
        for number in 0..24_u128 {
            let player = player(&store, number, &format!("lock-{}", number % 12));
            callers.spawn(async move {
                let mut won = Vec::new();
                for _ in 0..10 {
                    if let Outcome::Granted(lease) = player.try_acquire().await {
                        assert!(matches!(player.release(&lease).await, Outcome::Released(_)));
                        won.push((player.lock.clone(), lease.token));
                    }
                }
                won
            });
        }
    }
    let won: Vec<(LockName, Token)> = callers.join_all().await.concat();
    let unique: std::collections::BTreeSet<_> = won.iter().cloned().collect();
    assert!(won.len() >= 12, "{}", won.len());
    assert_eq!(unique.len(), won.len(), "a token was granted twice");
}

#[test]
fn of_sixteen_clients_in_two_processes_one_wins_each_round() {
    let schema = Schema::new();
    crate::engines::race::one_winner_each(&schema.url_with("pool=2"));
}

#[test]
fn sixteen_clients_in_two_processes_have_the_lock_one_at_a_time() {
    let schema = Schema::new();
    crate::engines::race::one_at_a_time(&schema.url_with("pool=2"), 20);
}
