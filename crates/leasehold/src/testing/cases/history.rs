//! Every change adds one event, in order, and the events are complete.

use std::collections::BTreeMap;

use crate::model::EventKind::{Acquired, Asked, Expired, Forced, Left, Queued, Released, Renewed, Stolen};
use crate::model::{Event, EventKind, LeaseId, LockName, Outcome, Token};
use crate::store::{Cursor, EventRange, ListEvents};
use crate::testing::Fixture;

async fn told(f: &Fixture, lock: Option<&LockName>) -> Vec<Event> {
    let mut ask = ListEvents { lock: lock.cloned(), span: EventRange::After(Cursor::start()), limit: 1000 };
    let mut all = Vec::new();
    loop {
        let page = f.one.locks().history(&ask).await.expect("a page");
        if page.items.is_empty() {
            return all;
        }
        all.extend(page.items);
        ask.span = EventRange::After(page.next.expect("a place to go on from"));
    }
}

pub async fn every_change_is_told_once_and_in_order(f: Fixture) {
    let [a, b, c, admin] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    c.queues().await;
    f.pass(1_000);
    c.leaves().await;
    admin.asks_for_release().await;
    a.releases(&lease).await;
    let second = b.takes().await;
    admin.forces(second.token).await;
    a.takes().await;
    f.pass(10_000);
    let thief = c.thief(1);
    thief.takes().await;
    f.pass(1_000);
    b.thief(1).takes().await;
    let events = told(&f, Some(&a.lock)).await;
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    let expected = [
        Acquired, Queued, Queued, Left, Asked, Released, Acquired, Forced, Acquired, Expired, Acquired,
        Stolen, Acquired,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[7].by, Some(admin.ask.holder.clone()));
    assert_eq!(events[7].reason.as_ref().expect("why").as_str(), "stuck");
    assert_eq!(events[6].after_micros, 1_000_000);
    assert_eq!(told(&f, None).await, events);
}

pub async fn what_changes_nothing_tells_nothing(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    let before = (told(&f, None).await, a.record().await);
    b.is_refused().await;
    b.releases(&lease).await;
    b.renews(&lease).await;
    b.leaves().await;
    b.forces(Token::default()).await;
    f.one.locks().sweep(10).await.expect("swept");
    assert_eq!((told(&f, None).await, a.record().await), before);
}

pub async fn renewals_are_counted_not_listed(f: Fixture) {
    let [a] = f.players("lock");
    let lease = a.takes().await;
    for _ in 0..5 {
        f.pass(5_000);
        a.renews(&lease).await;
    }
    a.releases(&lease).await;
    let events = told(&f, Some(&a.lock)).await;
    assert_eq!(events.len(), 2);
    assert_eq!(
        (events[1].kind, events[1].renewals, events[1].after_micros),
        (EventKind::Released, 5, 25_000_000)
    );
}

/// Also with a queue and among plain renewals, where engines have fast paths.
pub async fn a_renewal_is_listed_if_its_caller_asks_for_that(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    f.pass(2_000);
    assert!(matches!(a.renews_logged(&lease).await, Outcome::Renewed(_)));
    a.renews(&lease).await;
    b.queues().await;
    f.pass(1_000);
    let Outcome::Renewed(renewed) = a.renews_logged(&lease).await else { panic!("it is held") };
    assert_eq!((renewed.renewals, renewed.renewed_at), (3, f.clock.now()));
    assert!(matches!(b.renews_logged(&lease).await, Outcome::NotHeld(_)));
    let events = told(&f, Some(&a.lock)).await;
    let seen: Vec<_> =
        events.iter().map(|event| (event.kind, event.renewals, event.after_micros / 1_000_000)).collect();
    let expected = [(Acquired, 0, 0), (Renewed, 1, 2), (Queued, 0, 0), (Renewed, 3, 3)];
    assert_eq!(seen, expected);
    assert_eq!((events[1].token, events[1].lease_id), (lease.token, a.id()));
}

pub async fn history_is_read_in_pages_both_ways(f: Fixture) {
    let (a, other) = (f.player(1, "lock"), f.player(2, "other"));
    for _ in 0..75 {
        let lease = a.takes().await;
        a.releases(&lease).await;
        let lease = other.takes().await;
        other.releases(&lease).await;
        f.pass(1);
    }
    let forward = told(&f, Some(&a.lock)).await;
    assert_eq!(forward.len(), 150);
    assert!(forward.iter().all(|event| event.lock == a.lock));
    let mut ask = ListEvents { lock: Some(a.lock.clone()), span: EventRange::Newest, limit: 7 };
    let mut backward = Vec::new();
    loop {
        let page = f.two.locks().history(&ask).await.expect("a page");
        assert!(page.items.len() <= 7);
        backward.extend(page.items);
        match page.next {
            Some(next) => ask.span = EventRange::Before(next),
            None => break,
        }
    }
    backward.reverse();
    assert_eq!(backward, forward);
    assert_eq!(told(&f, None).await.len(), 300);
}

pub async fn replaying_the_history_gives_the_lock(f: Fixture) {
    let players: [_; 8] = f.players("lock");
    let players = players.map(|player| player.slots(2));
    for (turn, player) in players.iter().cycle().take(200).enumerate() {
        match turn % 7 {
            0..=3 => drop(player.asks_in_line().await),
            4 => {
                if let Some(lease) = player.record().await.holders.first().cloned() {
                    let holder =
                        players.iter().find(|other| other.id() == lease.ask.lease_id).expect("a player");
                    holder.releases(&lease).await;
                }
            }
            5 => drop(player.leaves().await),
            _ => f.pass(turn as u64 * 10),
        }
        let record = players[0].record().await;
        let (holders, waiters) = replay(&told(&f, Some(&players[0].lock)).await);
        let kept: BTreeMap<_, _> =
            record.holders.iter().map(|lease| (lease.ask.lease_id, lease.token)).collect();
        let mut queue: Vec<_> = record.waiters.iter().map(|ticket| ticket.ask.lease_id).collect();
        queue.sort();
        assert_eq!((holders, waiters), (kept, queue), "after turn {turn}");
    }
}

/// Reconstructs the holders and the waiters from the history alone.
fn replay(events: &[Event]) -> (BTreeMap<LeaseId, Token>, Vec<LeaseId>) {
    let (mut holders, mut waiters) = (BTreeMap::new(), Vec::new());
    for event in events {
        match event.kind {
            EventKind::Acquired => {
                waiters.retain(|id| *id != event.lease_id);
                holders.insert(event.lease_id, event.token);
            }
            EventKind::Released if event.until.is_some() => {}
            EventKind::Released | EventKind::Expired | EventKind::Stolen | EventKind::Forced => {
                holders.remove(&event.lease_id);
            }
            EventKind::Queued => waiters.push(event.lease_id),
            EventKind::Left => waiters.retain(|id| *id != event.lease_id),
            EventKind::Asked | EventKind::Renewed => {}
        }
    }
    waiters.sort();
    (holders, waiters)
}
