//! Another session has locked a lock's row: leases count from the end of the wait, and the wait is bounded.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, EventKind, LockName, LockOp, Outcome, Timestamp, Ttl};
use leasehold::store::postgres::PostgresStore;
use leasehold::store::{ListEvents, ListLocks, LockStore, Store};
use leasehold::testing::TestClient;
use tokio_postgres::Client;

use super::schema::Schema;

/// TTL that is shorter than the wait for the row.
const SHORT: Ttl = Ttl::from_millis(500);
/// Duration of the wait for the row.
const HELD_UP: Duration = Duration::from_millis(900);

async fn player(schema: &Schema, number: u128) -> TestClient {
    let mut player = TestClient::new(schema.store().await, number, LockName::new("lock").unwrap());
    player.request.ttl = SHORT;
    player.request.lease_id = leasehold::model::LeaseId::from_uuid(uuid::Uuid::now_v7());
    player
}

/// Locks the row of a lock without changing it.
async fn lock_row(schema: &Schema) -> Client {
    let client = schema.client().await;
    let sql = format!("BEGIN; SELECT * FROM {}.locks WHERE name = 'lock' FOR UPDATE", schema.name);
    client.batch_execute(&sql).await.unwrap();
    client
}

/// Makes the operation wait for the row for longer than a lease lasts. Returns a time before the end of the wait, too.
async fn held_up(schema: &Schema, player: &TestClient, op: LockOp) -> (Outcome, Timestamp) {
    // All connections are open before the wait begins: opening one takes a while, and the server's timeouts are short.
    let watcher = schema.client().await;
    player.store.locks().list(&ListLocks::default()).await.unwrap();
    let client = lock_row(schema).await;
    let waits = tokio::spawn({
        let player = player.clone();
        async move { player.apply(op).await }
    });
    let blocker: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))";
    while watcher.query_one(waiting, &[&blocker]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(HELD_UP).await;
    let still_waits = player.store.locks().now().await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    (waits.await.unwrap(), still_waits)
}

/// Asserts that the lease counts from the end of the wait.
fn is_fresh((outcome, still_waited): (Outcome, Timestamp)) {
    match outcome {
        Outcome::Granted(lease) | Outcome::Renewed(lease) => {
            assert!(lease.renewed_at >= still_waited, "{lease:?} is from before {still_waited:#}");
            assert_eq!(lease.expires_at, lease.renewed_at.plus(SHORT));
        }
        other => panic!("{other:?}"),
    }
}

fn asks(player: &TestClient, queue: Option<Ttl>) -> LockOp {
    LockOp::Acquire(Acquire { request: Arc::new(player.request.clone()), queue, steal_after: None })
}

#[tokio::test]
async fn a_lease_that_waited_for_its_row_has_its_full_ttl() {
    let schema = Schema::new();
    let player = player(&schema, 1).await;
    let lease = player.acquire().await;
    player.release(&lease).await;
    is_fresh(held_up(&schema, &player, asks(&player, None)).await);
}

#[tokio::test]
async fn a_renewal_that_waited_for_its_row_counts_from_the_end_of_the_wait() {
    let schema = Schema::new();
    let mut player = player(&schema, 1).await;
    player.request.ttl = Ttl::from_secs(30);
    let lease = player.acquire().await;
    let renew = leasehold::model::Renew { lease_id: player.id(), token: lease.token, ttl: Some(SHORT) };
    is_fresh(held_up(&schema, &player, LockOp::Renew(renew)).await);
}

#[tokio::test]
async fn a_lease_that_ends_during_the_wait_is_not_renewed() {
    let schema = Schema::new();
    let player = player(&schema, 1).await;
    let lease = player.acquire().await;
    let renew = leasehold::model::Renew { lease_id: player.id(), token: lease.token, ttl: None };
    let (outcome, _) = held_up(&schema, &player, LockOp::Renew(renew)).await;
    assert!(matches!(outcome, Outcome::NotHeld(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_release_that_waited_for_its_row_is_made_after_the_wait() {
    let schema = Schema::new();
    let mut player = player(&schema, 1).await;
    player.request.ttl = Ttl::from_secs(30);
    let lease = player.acquire().await;
    let release = leasehold::model::Release { lease_id: player.id(), token: lease.token, at_least: None };
    let (outcome, still_waited) = held_up(&schema, &player, LockOp::Release(release)).await;
    assert!(matches!(outcome, Outcome::Released(_)), "{outcome:?}");
    let events = player.store.locks().history(&ListEvents::default()).await.unwrap().items;
    assert_eq!(events[0].kind, EventKind::Released);
    assert!(events[0].at >= still_waited, "{events:?} and {still_waited:#}");
    let record = player.record().await;
    assert!(record.holders.is_empty() && record.token == lease.token, "{record:?}");
}

/// The lock has a queue, so the operation takes the slow path. The lease of its holder expires during the wait.
#[tokio::test]
async fn the_slow_path_reads_the_clock_after_the_wait() {
    let schema = Schema::new();
    let (first, second) = (player(&schema, 1).await, player(&schema, 2).await);
    // Opening a connection takes a while, and the lease is short.
    second.withdraw().await;
    first.acquire().await;
    second.expect_queued().await;
    is_fresh(held_up(&schema, &second, asks(&second, Some(Ttl::from_secs(5)))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wait_for_a_locked_row_is_bounded_and_has_no_effect() {
    let schema = Schema::new();
    let store = schema.store().await;
    let player = TestClient::new(store.clone(), 1, LockName::new("lock").unwrap());
    let lease = player.acquire().await;
    player.release(&lease).await;
    let client = lock_row(&schema).await;
    // In one statement with other operations, which must not be delayed for long.
    let others: Vec<_> = (0..24).map(|n| LockName::new(format!("other-{n}")).unwrap()).collect();
    let mut asking = tokio::task::JoinSet::new();
    for (number, name) in others.into_iter().enumerate() {
        let other = TestClient::new(store.clone(), 100 + number as u128, name);
        asking.spawn(async move { drop(other.acquire().await) });
    }
    let error = store.apply(&player.lock, &asks(&player, None)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error}");
    asking.join_all().await;
    client.batch_execute("COMMIT").await.unwrap();
    assert!(player.record().await.holders.is_empty());
    player.acquire().await;
}

/// The rows of many locks are locked for longer than their callers wait, and the operations are executed one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_whose_callers_have_given_up_are_not_executed() {
    let schema = Schema::new();
    let store = Arc::new(PostgresStore::connect(schema.options("pool=1")).await.unwrap());
    // Clients 0 and 100 use the same lock.
    let client = |number: u128| {
        let name = LockName::new(format!("lock-{}", number % 100)).unwrap();
        TestClient::new(store.clone(), number, name)
    };
    for number in 0..12 {
        let lease = client(number).acquire().await;
        client(number).release(&lease).await;
    }
    let other_session = schema.client().await;
    let hold = format!("BEGIN; SELECT * FROM {}.locks FOR UPDATE", schema.name);
    other_session.batch_execute(&hold).await.unwrap();
    let waiting = (0..12).map(|number| {
        let (store, client) = (store.clone(), client(number));
        async move { store.apply(&client.lock, &asks(&client, None)).await }
    });
    for answer in futures_util::future::join_all(waiting).await {
        assert_eq!(answer.unwrap_err().code(), "STORE_UNAVAILABLE");
    }
    other_session.batch_execute("COMMIT").await.unwrap();
    // Each of these is behind the operation that was given up. One or two of those may have been in flight.
    let mut executed = 0;
    for number in 100..112 {
        executed += u32::from(matches!(client(number).try_acquire().await, Outcome::Conflict(_)));
    }
    assert!(executed <= 2, "{executed} of 12 operations were executed");
}

/// A client that falls silent in the middle of a transaction does not keep the row locked.
#[tokio::test]
async fn the_server_ends_silent_transactions() {
    let schema = Schema::new();
    let store = schema.store().await;
    let findings = store.check_health().await.unwrap();
    let timeouts = findings.iter().find(|finding| finding.name == "timeouts").unwrap();
    assert_eq!((timeouts.detail.as_str(), &timeouts.issue), ("a statement ends after 4s", &None));
}

/// Another program keeps a row locked: only operations on that lock wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_does_not_delay_other_locks() {
    let schema = Schema::new();
    let store: Arc<dyn Store> = schema.store().await;
    let clients: Vec<TestClient> = (0..12_u128)
        .map(|number| {
            let name = if number == 0 { "lock".to_owned() } else { format!("other-{number}") };
            let mut player = TestClient::new(store.clone(), number, LockName::new(name).unwrap());
            player.request.ttl = Ttl::from_secs(60);
            player
        })
        .collect();
    let mut leases = Vec::new();
    for player in &clients {
        leases.push(player.acquire().await);
    }
    let other_session = lock_row(&schema).await;
    for round in 0..3 {
        let renewals = clients.iter().zip(&leases).skip(1).map(|(player, lease)| async move {
            let started = std::time::Instant::now();
            assert!(matches!(player.renew(lease).await, Outcome::Renewed(_)));
            started.elapsed()
        });
        let stuck = leasehold::model::Renew { lease_id: clients[0].id(), token: leases[0].token, ttl: None };
        let stuck = LockOp::Renew(stuck);
        let blocked = async {
            let started = std::time::Instant::now();
            let error = clients[0].store.locks().apply(&clients[0].lock, &stuck).await.unwrap_err();
            assert_eq!(error.code(), "STORE_UNAVAILABLE");
            started.elapsed()
        };
        let (blocked, others) = tokio::join!(biased; blocked, futures_util::future::join_all(renewals));
        let slowest = others.into_iter().max().unwrap();
        assert!(slowest < blocked / 2, "round {round}: {slowest:?} beside {blocked:?}");
    }
    other_session.batch_execute("COMMIT").await.unwrap();
    assert!(matches!(clients[0].renew(&leases[0]).await, Outcome::Renewed(_)));
}
