//! Simple queue: joining and handing over are one statement each, or one for both, with the same results as the rules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{LeaseId, LockName, Outcome};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{Clock, LockStore, StoreUrl, Wakeup};
use leasehold::testing::TestClient;
use tokio_postgres::config::Host;

use super::faults::proxy_before;
use super::schema::{Schema, last_statements};
use crate::engines::proxy::Proxy;
use crate::engines::queue_differential;
use crate::engines::support::{clock, engine_at};

#[tokio::test]
async fn joining_and_handing_over_are_one_statement_each() {
    let schema = Schema::new();
    let application = schema.name.clone();
    let options = schema.options(&format!("pool=1&application_name={application}"));
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let client = schema.client().await;
    let [one, two, three] =
        [1, 2, 3].map(|number| TestClient::new(store.clone(), number, LockName::new("lock").unwrap()));
    let lease = one.acquire().await;
    for (ahead, player) in [&two, &three].into_iter().enumerate() {
        let Outcome::Queued(queued) = player.try_acquire_queued().await else { panic!("not queued") };
        assert_eq!((queued.ahead as usize, queued.conflict.waiters as usize), (ahead, ahead + 1));
        let statements = last_statements(&client, &application).await;
        assert!(statements.last().unwrap().contains("jsonb_build_object"), "{statements:?}");
    }
    assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
    // The waiter that was granted the lock may wait in another process, which is notified afterwards.
    let statements = last_statements(&client, &application).await;
    let last = statements.last().unwrap();
    assert!(last.starts_with("WITH old AS") || last.contains("pg_notify"), "{statements:?}");
    assert_eq!(statements.len(), 1, "one connection for all operations");
    assert!(two.record().await.lease(&two.id()).is_some());
}

/// Operations that wait for the connection share a statement: a waiter joins in the statement that hands over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_joins_in_the_statement_of_a_hand_over() {
    let schema = Schema::new();
    let store = Arc::new(PostgresStore::connect(schema.options("pool=1")).await.unwrap());
    let client = schema.client().await;
    let player = |number, name| TestClient::new(store.clone(), number, LockName::new(name).unwrap());
    let [one, two, three] = [1, 2, 3].map(|number| player(number, "lock"));
    let other = player(4, "other");
    let lease = other.acquire().await;
    assert!(matches!(other.release(&lease).await, Outcome::Released(_)));
    let lease = one.acquire().await;
    assert!(matches!(two.try_acquire_queued().await, Outcome::Queued(_)));

    let hold = format!("BEGIN; SELECT * FROM {}.locks WHERE name = 'other' FOR UPDATE", schema.name);
    client.batch_execute(&hold).await.unwrap();
    let busy = tokio::spawn(async move { other.try_acquire().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let joins = tokio::spawn(async move { three.try_acquire_queued().await });
    let releases = tokio::spawn(async move { one.release(&lease).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.batch_execute("COMMIT").await.unwrap();

    assert!(matches!(busy.await.unwrap(), Outcome::Granted(_)));
    assert!(matches!(releases.await.unwrap(), Outcome::Released(_)));
    let Outcome::Queued(queued) = joins.await.unwrap() else { panic!("not queued") };
    assert_eq!((queued.ahead, queued.conflict.waiters), (0, 1));
    assert_eq!(queued.conflict.holders[0].holder, two.request.holder, "behind the new holder");
    let sql = format!(
        "SELECT string_agg(kind, ' ' ORDER BY seq), count(DISTINCT by) FROM
            (SELECT seq, kind, xmin::text AS by FROM {}.events WHERE lock = 'lock' ORDER BY seq DESC LIMIT 3) e",
        schema.name
    );
    let row = client.query_one(&sql, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), ("released acquired queued", 1_i64), "one transaction");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_history_of_a_queue_agrees_with_the_rules() {
    let schema = Schema::new();
    let clock = clock();
    let stores = [schema.store_at(&clock, "pool=1").await, schema.store_at(&clock, "pool=1").await];
    queue_differential::random_operations_agree(stores, &clock).await;
}

/// Like the test above, with queues stored as rows from the third ticket on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_history_of_a_queue_of_rows_agrees_with_the_rules() {
    let schema = Schema::new();
    let clock = clock();
    let stores = [with_rows(&schema, &clock, 2).await, with_rows(&schema, &clock, 2).await];
    queue_differential::random_operations_agree(stores, &clock).await;
}

async fn with_rows(schema: &Schema, clock: &Clock, long_queue: usize) -> Arc<PostgresStore> {
    let mut options = schema.options("pool=1");
    (options.clock, options.long_queue) = (Some(clock.clone()), long_queue);
    Arc::new(PostgresStore::connect(options).await.unwrap())
}

/// A queue that an older release has stored in the lock's row becomes rows with the next change, and returns when it is short.
#[tokio::test]
async fn a_long_queue_of_an_older_release_becomes_rows() {
    let schema = Schema::new();
    let clock = clock();
    let old = with_rows(&schema, &clock, usize::MAX).await;
    let name = LockName::new("lock").unwrap();
    let lease = TestClient::new(old.clone(), 1, name.clone()).acquire_for(600).await;
    for number in 2..=201 {
        TestClient::new(old.clone(), number, name.clone()).expect_queued_for(600).await;
    }
    let before = TestClient::new(old, 1, name.clone()).record().await;
    let new = with_rows(&schema, &clock, 128).await;
    let player = |number| TestClient::new(new.clone(), number, name.clone());
    assert_eq!(player(1).record().await, before);
    let client = schema.client().await;
    let rows = async || {
        let sql = format!("SELECT count(*) FROM {}.tickets", schema.name);
        client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    assert_eq!((rows().await, player(150).expect_queued_for(600).await.ahead, rows().await), (0, 148, 200));
    assert!(matches!(player(1).release(&lease).await, Outcome::Released(_)));
    assert!(player(2).peek().await.lease.is_some());
    for number in 3..=140 {
        player(number).withdraw().await;
    }
    let record = player(2).record().await;
    let waiting: Vec<_> = record.waiters.iter().map(|ticket| ticket.request.lease_id).collect();
    assert_eq!(waiting, (141..=201).map(|number| player(number).id()).collect::<Vec<_>>());
    assert_eq!(rows().await, 0, "a short queue is in the lock's row");
}

/// The answer to a refresh states that the request is still queued, so its lease begins later. The grant has read the
/// tickets before the refresh, and waits for the row of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_is_refreshed_during_its_grant_becomes_a_later_lease() {
    let schema = Schema::new();
    let open = async || {
        let mut options = schema.options("pool=1");
        options.long_queue = 2;
        Arc::new(PostgresStore::connect(options).await.unwrap())
    };
    let (here, there) = (open().await, open().await);
    let name = LockName::new("lock").unwrap();
    let holder = TestClient::new(here.clone(), 1, name.clone());
    let lease = holder.acquire_for(600).await;
    // The two shared requests are granted together.
    let other = TestClient::new(here.clone(), 2, name.clone()).shared();
    let waiter = TestClient::new(there, 3, name.clone()).shared();
    let last = TestClient::new(here, 4, name);
    for queued in [&other, &waiter, &last] {
        queued.expect_queued_for(600).await;
    }
    // Its store knows now that the tickets are rows.
    waiter.expect_queued_for(600).await;
    let (client, watcher) = (schema.client().await, schema.client().await);
    let (table, id) = (format!("{}.tickets", schema.name), other.id());
    let hold = format!("BEGIN; SELECT FROM {table} WHERE lease_id = '{}' FOR UPDATE", id.as_uuid());
    client.batch_execute(&hold).await.unwrap();
    let blocker: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let releases = tokio::spawn(async move { holder.release(&lease).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))";
    while watcher.query_one(waiting, &[&blocker]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(!releases.is_finished(), "the release does not wait");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = waiter.store.locks().now().await.unwrap();
    waiter.expect_queued_for(600).await;
    client.batch_execute("COMMIT").await.unwrap();
    assert!(matches!(releases.await.unwrap(), Outcome::Released(_)));
    let record = waiter.record().await;
    let granted = record.lease(&waiter.id()).unwrap();
    assert!(granted.acquired_at >= before, "{granted:?} is from before {before:#}");
}

/// A waiter that is notified reads its lease, and no ticket behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_a_notified_waiter_does_not_depend_on_the_length_of_its_queue() {
    let schema = Schema::new();
    let here = schema.store().await;
    let (proxy, mut options) = proxy_before(&schema, "sslmode=disable");
    // No poll happens in time.
    options.poll = Duration::from_mins(1);
    let there = Arc::new(PostgresStore::connect(options).await.unwrap());
    let new_id = || LeaseId::from_uuid(uuid::Uuid::now_v7());
    let _listens = there.subscribe_waiter(None, &new_id());
    let client = schema.client().await;
    let listen = format!("LISTEN leasehold_{}", schema.name);
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(query, $1) AND state = 'idle'";
    while client.query_one(listens, &[&listen]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut costs = Vec::new();
    for count in [140, 900] {
        let name = LockName::new(format!("lock-{count}")).unwrap();
        let player = |number: u128| TestClient::new(here.clone(), 200_000 + number, name.clone());
        let lease = player(0).acquire_for(600).await;
        let mut waiter = TestClient::new(there.clone(), 200_001, name.clone());
        waiter.request.lease_id = new_id();
        let mut changes = waiter.subscribe();
        waiter.expect_queued_for(600).await;
        for number in 2..=count {
            player(number).expect_queued_for(600).await;
        }
        let before = proxy.counts().back;
        assert!(matches!(player(0).release(&lease).await, Outcome::Released(_)));
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match changes.next(Duration::from_secs(30)).await {
                Wakeup::Granted(_) => break,
                other => assert!(Instant::now() < until, "{other:?}"),
            }
        }
        costs.push(proxy.counts().back - before);
    }
    assert!(costs[1] <= costs[0] + 200, "{costs:?}");
}

/// A query and a refresh cost the same in a queue of any length, in bytes on the wire and in rows written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_a_waiter_does_not_depend_on_the_length_of_its_queue() {
    let schema = Schema::new();
    let target = engine_at("postgres");
    let config: tokio_postgres::Config = target.parse().unwrap();
    let (Host::Tcp(host), port) = (&config.get_hosts()[0], config.get_ports()[0]) else { panic!("no host") };
    let at = tokio::net::lookup_host((host.as_str(), port)).await.unwrap().next().unwrap();
    let proxy = Proxy::before(at);
    let url = schema
        .url_with("pool=1&sslmode=disable")
        .replace(&format!("{host}:{port}"), &proxy.address().to_string());
    let options = PostgresOptions::from_url(&StoreUrl::parse(&url).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let client = schema.client().await;
    let mut costs = Vec::new();
    for count in [140, 900] {
        let name = LockName::new(format!("lock-{count}")).unwrap();
        // Names and ids have the same length in bytes.
        let player = |number: u128| TestClient::new(store.clone(), 100_000 + number, name.clone());
        player(0).acquire_for(600).await;
        for number in 1..=count {
            player(number).expect_queued_for(600).await;
        }
        let last = player(count);
        for _ in 0..3 {
            last.peek().await;
            last.expect_queued_for(600).await;
        }
        let rows = async || {
            let sql = format!(
                "SELECT (SELECT xmin::text FROM {0}.locks WHERE name = $1), array_agg(xmin::text ORDER BY position) FROM {0}.tickets
                 WHERE lock = $1",
                schema.name
            );
            let row = client.query_one(&sql, &[&name.as_str()]).await.unwrap();
            (row.get::<_, String>(0), row.get::<_, Vec<String>>(1))
        };
        let (before, bytes) = (rows().await, proxy.counts());
        for _ in 0..20 {
            assert!(last.peek().await.lease.is_none());
        }
        let peeked = proxy.counts();
        for _ in 0..20 {
            assert_eq!(last.expect_queued_for(600).await.ahead, u32::try_from(count).unwrap() - 1);
        }
        let refreshed = proxy.counts();
        let after = rows().await;
        assert_eq!(before.0, after.0, "the lock's row is not written");
        let written = before.1.iter().zip(&after.1).filter(|(before, after)| before != after).count();
        assert_eq!((before.1.len(), written), (usize::try_from(count).unwrap(), 1), "one ticket is");
        costs.push((peeked.back - bytes.back, refreshed.back - peeked.back));
    }
    let [(peek, refresh), (peek_long, refresh_long)] = costs[..] else { panic!("{costs:?}") };
    assert!(peek_long <= peek + 200 && refresh_long <= refresh + 200, "{costs:?}");
    assert!(refresh / 20 < 2_000, "{costs:?}");
}
