//! Lists and history over many buckets, and sweeps: ordered, complete and bounded.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{LockName, LockOp, Outcome};
use leasehold::store::redis::RedisStore;
use leasehold::store::{Cursor, EventRange, ListEvents, ListLocks, Store};
use leasehold::testing::{Fixture, Player};

use super::server::Server;
use super::support::{fresh_at, options};
use crate::engines::support::engine_at;

async fn fresh() -> Option<Fixture> {
    Some(fresh_at(&engine_at("redis")?).await)
}

#[tokio::test]
async fn many_locks_are_listed_once_each_and_in_order() {
    let Some(f) = fresh().await else { return };
    let mut names: Vec<String> = (0..500).map(|number| format!("job/{}", number * 7919 % 1000)).collect();
    for (number, name) in (1..).zip(&names) {
        f.player(number, name).takes().await;
    }
    names.sort();
    for limit in [3, 100, 1000] {
        let mut query = ListLocks { prefix: Some("job/".to_owned()), limit, ..ListLocks::default() };
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
    let Some(f) = fresh().await else { return };
    for number in 1..=200 {
        let player = f.player(number, &format!("lock-{}", number % 90));
        let lease = player.takes().await;
        player.releases(&lease).await;
        f.pass(1);
    }
    let mut forward = Vec::new();
    let mut span = EventRange::After(Cursor::start());
    loop {
        let page = f.one.locks().history(&ListEvents { lock: None, span, limit: 7 }).await.unwrap();
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
        let page = f.two.locks().history(&ListEvents { lock: None, span, limit: 9 }).await.unwrap();
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
    let Some(f) = fresh().await else { return };
    f.player(1, "first").takes().await;
    let newest = ListEvents { limit: 1, ..ListEvents::default() };
    let page = f.one.locks().history(&newest).await.unwrap();
    let mut cursor = page.next.unwrap();
    let writers: Vec<_> = (0..4u128)
        .map(|writer| {
            let players: Vec<_> = (0..100)
                .map(|turn| f.player(1000 + writer * 1000 + turn, &format!("lock-{writer}-{}", turn % 10)))
                .collect();
            tokio::spawn(async move {
                for player in players {
                    let lease = player.takes().await;
                    player.releases(&lease).await;
                }
            })
        })
        .collect();
    let mut seen = Vec::new();
    let follow = async {
        while seen.len() < 800 {
            let query = ListEvents { lock: None, span: EventRange::After(cursor.clone()), limit: 50 };
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
    let Some(server) = Server::start(&[]).await else { return };
    let store = Arc::new(
        RedisStore::connect(options(&format!("{}?events=640", server.url()), "leasehold")).await.unwrap(),
    );
    let player = Player::new(store.clone(), 1, LockName::new("lock").unwrap());
    for _ in 0..500 {
        let lease = player.takes().await;
        player.releases(&lease).await;
    }
    let keys: Vec<String> = server.command(&["KEYS", "*:events"]).await.unwrap();
    let kept: usize = server.command(&["XLEN", &keys[0]]).await.unwrap();
    // Redis trims whole nodes of the stream, of a hundred entries or 4 KiB.
    assert!((10..=210).contains(&kept), "{kept}");
    let query =
        ListEvents { lock: Some(player.lock.clone()), span: EventRange::After(Cursor::start()), limit: 1000 };
    assert_eq!(store.locks().history(&query).await.unwrap().items.len(), kept);
}

/// Renewals do not change the due time of a lock, so a sweep may come too early: it corrects the due
/// time and changes nothing else.
#[tokio::test]
async fn an_early_sweep_corrects_the_due_time() {
    let Some(f) = fresh().await else { return };
    let (one, two) = (f.player(1, "lock"), f.player(2, "lock"));
    let lease = one.takes().await;
    f.pass(9_000);
    one.renews(&lease).await;
    f.pass(2_000);
    let before = one.record().await;
    assert_eq!(f.two.locks().sweep(10).await.unwrap().leases, 0);
    assert_eq!(one.record().await, before);
    f.pass(8_000);
    assert_eq!(f.two.locks().sweep(10).await.unwrap().leases, 1);
    let lease = two.takes().await;
    two.releases(&lease).await;
    f.pass(20_000);
    let before = one.record().await;
    assert_eq!(f.one.locks().sweep(10).await.unwrap().leases, 0);
    assert_eq!(one.record().await, before);
}

/// An operation that expires leases also corrects the due time.
#[tokio::test]
async fn a_shortened_lease_expires_in_time() {
    let Some(f) = fresh().await else { return };
    let (one, two) = (f.player(1, "lock"), f.player(2, "lock"));
    let lease = one.takes().await;
    let ttl = Some(leasehold::model::Ttl::from_secs(1));
    let op = leasehold::model::Renew { lease_id: one.id(), token: lease.token, ttl };
    assert!(matches!(one.apply(LockOp::Renew(op)).await, Outcome::Renewed(_)));
    f.pass(1_000);
    assert_eq!(f.two.locks().sweep(10).await.unwrap().leases, 1);
    two.takes().await;
}
