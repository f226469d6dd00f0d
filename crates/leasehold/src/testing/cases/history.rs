//! Every change adds one event, in order, and the events are complete.

use std::collections::BTreeMap;

use crate::model::EventKind::{
    Acquired, Expired, Forced, Queued, ReleaseRequested, Released, Renewed, Stolen, Withdrawn,
};
use crate::model::{Event, EventKind, LeaseId, LockName, Outcome, Token};
use crate::store::{Cursor, EventRange, ListEvents};
use crate::testing::Fixture;

async fn told(f: &Fixture, lock: Option<&LockName>) -> Vec<Event> {
    let mut query = ListEvents { lock: lock.cloned(), span: EventRange::After(Cursor::start()), limit: 1000 };
    let mut all = Vec::new();
    loop {
        let page = f.one.locks().history(&query).await.expect("a page");
        if page.items.is_empty() {
            return all;
        }
        all.extend(page.items);
        query.span = EventRange::After(page.next.expect("a place to go on from"));
    }
}

pub async fn every_change_is_recorded_once_and_in_order(f: Fixture) {
    let [a, b, c, admin] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    c.expect_queued().await;
    f.pass(1_000);
    c.withdraw().await;
    admin.request_release().await;
    a.release(&lease).await;
    let second = b.acquire().await;
    admin.force_release(second.token).await;
    a.acquire().await;
    f.pass(10_000);
    let thief = c.steal_after(1);
    thief.acquire().await;
    f.pass(1_000);
    b.steal_after(1).acquire().await;
    let events = told(&f, Some(&a.lock)).await;
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    let expected = [
        Acquired,
        Queued,
        Queued,
        Withdrawn,
        ReleaseRequested,
        Released,
        Acquired,
        Forced,
        Acquired,
        Expired,
        Acquired,
        Stolen,
        Acquired,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[7].by, Some(admin.request.holder.clone()));
    assert_eq!(events[7].reason.as_ref().expect("why").as_str(), "stuck");
    assert_eq!(events[6].after_micros, 1_000_000);
    assert_eq!(told(&f, None).await, events);
}

pub async fn an_operation_without_effect_records_no_event(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    let before = (told(&f, None).await, a.record().await);
    b.expect_conflict().await;
    b.release(&lease).await;
    b.renew(&lease).await;
    b.withdraw().await;
    b.force_release(Token::default()).await;
    f.one.locks().sweep(10).await.expect("swept");
    assert_eq!((told(&f, None).await, a.record().await), before);
}

pub async fn renewals_are_counted_and_not_recorded(f: Fixture) {
    let [a] = f.clients("lock");
    let lease = a.acquire().await;
    for _ in 0..5 {
        f.pass(5_000);
        a.renew(&lease).await;
    }
    a.release(&lease).await;
    let events = told(&f, Some(&a.lock)).await;
    assert_eq!(events.len(), 2);
    assert_eq!(
        (events[1].kind, events[1].renewals, events[1].after_micros),
        (EventKind::Released, 5, 25_000_000)
    );
}

/// Also with a queue and among plain renewals, where engines have fast paths.
pub async fn a_logged_renewal_is_recorded(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    f.pass(2_000);
    assert!(matches!(a.renew_logged(&lease).await, Outcome::Renewed(_)));
    a.renew(&lease).await;
    b.expect_queued().await;
    f.pass(1_000);
    let Outcome::Renewed(renewed) = a.renew_logged(&lease).await else { panic!("it is held") };
    assert_eq!((renewed.renewals, renewed.renewed_at), (3, f.clock.now()));
    assert!(matches!(b.renew_logged(&lease).await, Outcome::NotHeld(_)));
    let events = told(&f, Some(&a.lock)).await;
    let seen: Vec<_> =
        events.iter().map(|event| (event.kind, event.renewals, event.after_micros / 1_000_000)).collect();
    let expected = [(Acquired, 0, 0), (Renewed, 1, 2), (Queued, 0, 0), (Renewed, 3, 3)];
    assert_eq!(seen, expected);
    assert_eq!((events[1].token, events[1].lease_id), (lease.token, a.id()));
}

pub async fn history_is_read_in_pages_both_ways(f: Fixture) {
    let (a, other) = (f.client(1, "lock"), f.client(2, "other"));
    for _ in 0..75 {
        let lease = a.acquire().await;
        a.release(&lease).await;
        let lease = other.acquire().await;
        other.release(&lease).await;
        f.pass(1);
    }
    let forward = told(&f, Some(&a.lock)).await;
    assert_eq!(forward.len(), 150);
    assert!(forward.iter().all(|event| event.lock == a.lock));
    let mut query = ListEvents { lock: Some(a.lock.clone()), span: EventRange::Newest, limit: 7 };
    let mut backward = Vec::new();
    loop {
        let page = f.two.locks().history(&query).await.expect("a page");
        assert!(page.items.len() <= 7);
        backward.extend(page.items);
        match page.next {
            Some(next) => query.span = EventRange::Before(next),
            None => break,
        }
    }
    backward.reverse();
    assert_eq!(backward, forward);
    assert_eq!(told(&f, None).await.len(), 300);
}

pub async fn replaying_the_history_gives_the_lock(f: Fixture) {
    let clients: [_; 8] = f.clients("lock");
    let clients = clients.map(|client| client.slots(2));
    for (turn, client) in clients.iter().cycle().take(200).enumerate() {
        match turn % 7 {
            0..=3 => drop(client.try_acquire_queued().await),
            4 => {
                if let Some(lease) = client.record().await.holders.first().cloned() {
                    let holder =
                        clients.iter().find(|other| other.id() == lease.request.lease_id).expect("a player");
                    holder.release(&lease).await;
                }
            }
            5 => drop(client.withdraw().await),
            _ => f.pass(turn as u64 * 10),
        }
        let record = clients[0].record().await;
        let (holders, waiters) = replay(&told(&f, Some(&clients[0].lock)).await);
        let kept: BTreeMap<_, _> =
            record.holders.iter().map(|lease| (lease.request.lease_id, lease.token)).collect();
        let mut queue: Vec<_> = record.waiters.iter().map(|ticket| ticket.request.lease_id).collect();
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
            EventKind::Withdrawn => waiters.retain(|id| *id != event.lease_id),
            _ => {}
        }
    }
    waiters.sort();
    (holders, waiters)
}
