//! Lists and history over many buckets, and sweeps: ordered, complete and bounded.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{LockName, LockOp, Outcome};
use leasehold::store::redis::RedisStore;
use leasehold::store::{Cursor, EventRange, ListEvents, ListLocks, Store};
use leasehold::testing::{Fixture, TestClient};

use super::server::{Server, connect};
use super::support::{fresh_at, options};
use crate::engines::support::engine_at;

async fn fresh() -> Fixture {
    fresh_at(&engine_at("redis")).await
}

#[tokio::test]
async fn many_locks_are_listed_once_each_and_in_order() {
    let f = fresh().await;
    let mut names: Vec<String> = (0..500).map(|number| format!("job/{}", number * 7919 % 1000)).collect();
    for (number, name) in (1..).zip(&names) {
        f.client(number, name).acquire().await;
    }
    names.sort();
    for limit in [3, 100, 1000] {
        let mut query = ListLocks::default().prefix("job/".to_owned()).limit(limit);
        let mut listed = Vec::new();
        loop {
            let page = f.one.locks().list(&query).await.unwrap();
            assert!(page.items.len() <= limit as usize);
            listed.extend(page.items.iter().map(|record| record.name.to_string()));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        assert_eq!(listed, names, "{limit} at a time");
    }
}

#[tokio::test]
async fn the_global_history_is_complete_in_both_directions() {
    let f = fresh().await;
    for number in 1..=200 {
        let client = f.client(number, &format!("lock-{}", number % 90));
        let lease = client.acquire().await;
        client.release(&lease).await;
        f.pass(1);
    }
    let mut forward = Vec::new();
    let mut span = EventRange::After(Cursor::start());
    loop {
        let page = f.one.locks().history(&ListEvents::default().span(span).limit(7)).await.unwrap();
        span = EventRange::After(page.next.unwrap());
        if page.items.is_empty() {
            break;
        }
        forward.extend(page.items);
    }
    assert_eq!(forward.len(), 400);
    let mut backward = Vec::new();
    let mut span = EventRange::Newest;
    loop {
        let page = f.two.locks().history(&ListEvents::default().span(span).limit(9)).await.unwrap();
        backward.extend(page.items);
        match page.next {
            Some(next) => span = EventRange::Before(next),
            None => break,
        }
    }
    backward.reverse();
    assert_eq!(forward, backward);
}

/// `watch` begins after the newest event and must not miss one, however fast they are written.
#[tokio::test]
async fn following_the_global_history_misses_nothing() {
    let f = fresh().await;
    f.client(1, "first").acquire().await;
    let newest = ListEvents::default().limit(1);
    let page = f.one.locks().history(&newest).await.unwrap();
    let mut cursor = page.next.unwrap();
    let writers: Vec<_> = (0..4u128)
        .map(|writer| {
            let clients: Vec<_> = (0..100)
                .map(|turn| f.client(1000 + writer * 1000 + turn, &format!("lock-{writer}-{}", turn % 10)))
                .collect();
            tokio::spawn(async move {
                for client in clients {
                    let lease = client.acquire().await;
                    client.release(&lease).await;
                }
            })
        })
        .collect();
    let mut seen = Vec::new();
    let follow = async {
        while seen.len() < 800 {
            let query = ListEvents::default().span(EventRange::After(cursor.clone())).limit(50);
            let page = f.two.locks().history(&query).await.unwrap();
            seen.extend(page.items);
            cursor = page.next.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), follow).await.expect("every event is seen");
    for writer in writers {
        writer.await.unwrap();
    }
    let unique: std::collections::BTreeSet<_> =
        seen.iter().map(|event| (event.lock.clone(), event.token, event.kind.to_string())).collect();
    assert_eq!((seen.len(), unique.len()), (800, 800));
}

#[tokio::test]
async fn the_history_is_bounded() {
    let server = Server::start(&[]).await;
    let store = Arc::new(
        RedisStore::connect(options(&format!("{}?events=640", server.url()), "leasehold")).await.unwrap(),
    );
    let client = TestClient::new(store.clone(), 1, LockName::new("lock").unwrap());
    for _ in 0..500 {
        let lease = client.acquire().await;
        client.release(&lease).await;
    }
    let query =
        ListEvents::default().lock(client.lock.clone()).span(EventRange::After(Cursor::start())).limit(1000);
    // Events are moved and removed some at a time, in the background, and Redis trims whole nodes of the
    // stream, of 4 KiB.
    let mut kept = usize::MAX;
    for _ in 0..100 {
        kept = store.locks().history(&query).await.unwrap().items.len();
        if kept <= 200 {
            break;
        }
        let lease = client.acquire().await;
        client.release(&lease).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!((10..=200).contains(&kept), "{kept}");
}

/// Events that are moved while they are read are neither missed nor read twice, in either direction.
#[tokio::test]
async fn events_are_read_once_while_they_are_moved() {
    let server = Server::start(&[]).await;
    let store = Arc::new(RedisStore::connect(options(&server.url(), "leasehold")).await.unwrap());
    let lock = LockName::new("lock").unwrap();
    let client = TestClient::new(store.clone(), 1, lock.clone());
    let writer = tokio::spawn(async move {
        for _ in 0..400 {
            let lease = client.acquire().await;
            client.release(&lease).await;
        }
    });
    for of_one_lock in [true, false] {
        let mut query = ListEvents::default().lock(of_one_lock.then(|| lock.clone())).limit(20);
        query.span = EventRange::After(Cursor::start());
        let mut seen = Vec::new();
        let follow = async {
            while seen.len() < 800 {
                let page = store.locks().history(&query).await.unwrap();
                query.span = EventRange::After(page.next.unwrap());
                seen.extend(page.items.iter().map(|event| (event.token, event.kind.to_string())));
            }
        };
        tokio::time::timeout(Duration::from_secs(30), follow).await.expect("every event is seen");
        assert_eq!(seen.len(), 800);
        assert!(seen.windows(2).all(|two| two[0] != two[1] && two[0].0 <= two[1].0));
        let mut backward = Vec::new();
        query.span = EventRange::Newest;
        loop {
            let page = store.locks().history(&query).await.unwrap();
            backward.extend(page.items.iter().map(|event| (event.token, event.kind.to_string())));
            match page.next {
                Some(next) => query.span = EventRange::Before(next),
                None => break,
            }
        }
        backward.reverse();
        assert_eq!(seen, backward);
    }
    writer.await.unwrap();
    let keys: Vec<String> = server.command(&["KEYS", "*:blocks"]).await.unwrap();
    let blocks: usize = server.command(&["XLEN", &keys[0]]).await.unwrap();
    assert!((5..=100).contains(&blocks), "{blocks} blocks for 800 events");
    let keys: Vec<String> = server.command(&["KEYS", "*:recent"]).await.unwrap();
    let recent: usize = server.command(&["STRLEN", &keys[0]]).await.unwrap();
    assert!(recent < 20_000, "{recent} bytes of recent events");
}

/// Maintenance moves events also if no process does enough operations.
#[tokio::test]
async fn a_sweep_moves_many_recent_events() {
    let server = Server::start(&[]).await;
    let lock = LockName::new("lock").unwrap();
    let mut conn = connect(&server.url()).await.unwrap();
    let store = Arc::new(RedisStore::connect(options(&server.url(), "leasehold")).await.unwrap());
    let client = TestClient::new(store.clone(), 1, lock.clone());
    let lease = client.acquire().await;
    client.release(&lease).await;
    let keys: Vec<String> = server.command(&["KEYS", "*:recent"]).await.unwrap();
    let events: Vec<u8> = ::redis::cmd("GET").arg(&keys[0]).query_async(&mut conn).await.unwrap();
    let many = events.repeat(8_000 / events.len() + 1);
    ::redis::cmd("APPEND").arg(&keys[0]).arg(&many).query_async::<u64>(&mut conn).await.unwrap();
    store.locks().sweep(10).await.unwrap();
    let left: Vec<u8> = ::redis::cmd("GET").arg(&keys[0]).query_async(&mut conn).await.unwrap();
    assert!(left.len() < 100, "{} bytes are left", left.len());
    let query = ListEvents::default().lock(lock).limit(1000);
    let kept = store.locks().history(&query).await.unwrap().items;
    assert_eq!(kept.len(), 2 * (many.len() / events.len() + 1));
}

/// Renewals do not change the due time of a lock, so a sweep may come too early: it corrects the due
/// time and changes nothing else.
#[tokio::test]
async fn an_early_sweep_corrects_the_due_time() {
    let f = fresh().await;
    let (one, two) = (f.client(1, "lock"), f.client(2, "lock"));
    let lease = one.acquire().await;
    f.pass(9_000);
    one.renew(&lease).await;
    f.pass(2_000);
    let before = one.record().await;
    assert_eq!(f.two.locks().sweep(10).await.unwrap().leases, 0);
    assert_eq!(one.record().await, before);
    f.pass(8_000);
    assert_eq!(f.two.locks().sweep(10).await.unwrap().leases, 1);
    let lease = two.acquire().await;
    two.release(&lease).await;
    f.pass(20_000);
    let before = one.record().await;
    assert_eq!(f.one.locks().sweep(10).await.unwrap().leases, 0);
    assert_eq!(one.record().await, before);
}

/// An operation that expires leases also corrects the due time.
#[tokio::test]
async fn a_shortened_lease_expires_in_time() {
    let f = fresh().await;
    let (one, two) = (f.client(1, "lock"), f.client(2, "lock"));
    let lease = one.acquire().await;
    let ttl = Some(leasehold::model::Ttl::from_secs(1));
    let op = leasehold::model::Renew { lease_id: one.id(), token: lease.token, ttl };
    assert!(matches!(one.apply(LockOp::Renew(op)).await, Outcome::Renewed(_)));
    f.pass(1_000);
    assert_eq!(f.two.locks().sweep(10).await.unwrap().leases, 1);
    two.acquire().await;
}
