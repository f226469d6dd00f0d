//! The fair queue: order, hand-over, expiry of tickets, withdrawal.

use std::time::Duration;

use crate::model::{MAX_WAITERS, Outcome, Ttl};
use crate::store::Wakeup;
use crate::testing::{Fixture, Player};

pub async fn a_release_hands_over_to_the_first_ticket(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    assert_eq!(b.queues().await.ahead, 0);
    a.releases(&lease).await;
    let record = b.record().await;
    assert_eq!((record.holders.len(), record.waiters.len()), (1, 0));
    let handed_over = record.lease(&b.id()).expect("b has it");
    assert!(handed_over.token > lease.token);
    assert_eq!(handed_over.expires_at, f.clock.now().plus(Ttl::from_secs(5)));
}

pub async fn a_handed_over_lease_is_confirmed_by_asking_again(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    a.releases(&lease).await;
    let token = b.record().await.lease(&b.id()).expect("b has it").token;
    f.pass(1_000);
    let Outcome::Granted(confirmed) = b.asks_in_line().await else { panic!("not granted") };
    assert_eq!(confirmed.token, token);
    assert_eq!(confirmed.expires_at, f.clock.now().plus(b.ask.ttl));
}

pub async fn tickets_are_served_in_order_of_arrival(f: Fixture) {
    let players: [Player; 6] = f.players("lock");
    let mut lease = players[0].takes().await;
    for (place, player) in players[1..].iter().enumerate() {
        // Some of them arrive in the same microsecond.
        f.clock.advance(Duration::from_micros(place as u64 % 2));
        assert_eq!(player.queues().await.ahead as usize, place);
    }
    for pair in players.windows(2) {
        pair[0].releases(&lease).await;
        lease = pair[1].takes().await;
    }
}

pub async fn a_higher_priority_goes_first(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let urgent = c.priority(5);
    let lease = a.takes().await;
    b.queues().await;
    f.pass(1_000);
    assert_eq!(urgent.queues().await.ahead, 0);
    a.releases(&lease).await;
    assert!(urgent.holds().await && !b.holds().await);
}

pub async fn waiting_long_beats_a_higher_priority_that_came_late(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let urgent = c.priority(1);
    let mut lease = a.takes().await;
    b.queues().await;
    for _ in 0..8 {
        f.pass(4_000);
        let Outcome::Renewed(renewed) = a.renews(&lease).await else { panic!("not renewed") };
        lease = renewed;
        b.queues().await;
    }
    assert_eq!(urgent.queues().await.ahead, 1);
    a.releases(&lease).await;
    assert!(b.holds().await);
}

pub async fn nobody_overtakes_a_ticket(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    a.releases(&lease).await;
    assert_eq!(c.is_refused().await.holders[0].holder, b.ask.holder);
    f.pass(5_000);
    // B never confirmed its lease. Now C acquires the lock in one step.
    c.takes().await;
}

pub async fn asking_again_keeps_the_place(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    c.queues().await;
    f.pass(4_000);
    assert_eq!(b.queues().await.ahead, 0);
    assert_eq!(c.queues().await.ahead, 1);
    f.pass(4_000);
    a.releases(&lease).await;
    assert!(b.holds().await);
}

pub async fn a_ticket_without_a_sign_of_life_ends(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    f.pass(3_000);
    c.queues().await;
    f.pass(2_000);
    a.releases(&lease).await;
    assert!(c.holds().await && !b.holds().await);
}

pub async fn a_dead_waiter_delays_the_next_by_its_ticket_only(f: Fixture) {
    let [a, dead, c] = f.players("lock");
    let lease = a.takes().await;
    dead.queues().await;
    c.queues().await;
    a.releases(&lease).await;
    assert!(dead.holds().await);
    f.pass(4_999);
    assert!(matches!(c.asks_in_line().await, Outcome::Queued(_)));
    f.pass(1);
    let outcome = c.asks_in_line().await;
    assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
}

pub async fn leaving_gives_up_the_place(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    c.queues().await;
    assert_eq!(b.leaves().await, Outcome::Left);
    assert_eq!(b.leaves().await, Outcome::Left);
    a.releases(&lease).await;
    assert!(c.holds().await);
}

pub async fn leaving_gives_back_a_grant_that_was_never_seen(f: Fixture) {
    let [a, b, c] = f.players("lock");
    a.takes().await;
    b.queues().await;
    c.queues().await;
    a.leaves().await;
    assert!(b.holds().await);
    b.leaves().await;
    assert!(c.holds().await && !b.holds().await);
}

pub async fn a_writer_that_leaves_lets_the_readers_behind_it_in(f: Fixture) {
    let [a, b] = f.players("lock").map(Player::shared);
    let writer = f.player(9, "lock");
    a.takes().await;
    writer.queues().await;
    b.queues().await;
    writer.leaves().await;
    assert!(b.holds().await);
}

pub async fn the_last_asking_leaves_the_queue(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    assert_eq!(b.is_refused().await.waiters, 0);
    a.releases(&lease).await;
    assert!(!b.holds().await);
}

pub async fn a_queue_has_an_end(f: Fixture) {
    let [a] = f.players("lock");
    a.takes().await;
    for number in 0..MAX_WAITERS as u128 {
        f.player(number + 2, "lock").queues().await;
    }
    let outcome = f.player(1_000_000, "lock").asks_in_line().await;
    let Outcome::Conflict(conflict) = outcome else { panic!("{outcome:?}") };
    assert!(conflict.full);
    assert_eq!(conflict.waiters as usize, MAX_WAITERS);
}

pub async fn a_release_wakes_the_one_that_is_served(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let lease = a.takes().await;
    let (mut for_b, mut for_c) = (b.changes(), c.changes());
    b.queues().await;
    c.queues().await;
    a.releases(&lease).await;
    let poll = b.store.capabilities().poll;
    // Polling is the contract: `next` returns within the poll interval, and by then the lock is
    // available.
    let woken = tokio::time::timeout(poll * 3, for_b.next(Duration::MAX)).await.expect("a wake-up or a poll");
    if let Wakeup::Served(handed_over) = woken {
        assert_eq!(handed_over.lease.ask.lease_id, b.id());
    }
    assert!(b.holds().await);
    let nothing = tokio::time::timeout(poll / 4, for_c.next(Duration::MAX)).await;
    assert!(!matches!(nothing, Ok(Wakeup::Served(_) | Wakeup::Rung)), "c was woken for nothing");
}

/// A caller can wait under the lease id of another caller, or for two locks under one id.
pub async fn a_lease_is_never_delivered_to_a_waiter_for_another_lock(f: Fixture) {
    let (holder_a, holder_b) = (f.player(1, "a"), f.player(3, "b"));
    let (waiter_a, waiter_b) = (f.player(5, "a"), f.player(5, "b"));
    let lease_b = holder_b.takes().await;
    holder_a.takes().await;
    // The waiter for lock "a" comes last: a map by lease id alone would deliver the lease of "b" to
    // it.
    let mut for_b = waiter_b.changes();
    waiter_b.queues().await;
    let mut for_a = waiter_a.changes();
    waiter_a.queues().await;
    holder_b.releases(&lease_b).await;
    let poll = waiter_a.store.capabilities().poll;
    for _ in 0..3 {
        let woken = for_a.next(poll.min(Duration::from_millis(200))).await;
        assert!(!matches!(woken, Wakeup::Served(_)), "the lease of another lock: {woken:?}");
    }
    assert!(!waiter_a.holds().await && waiter_b.holds().await);
    tokio::time::timeout(poll * 3, for_b.next(Duration::MAX)).await.expect("a wake-up or a poll");
}

pub async fn a_peek_shows_the_lease_that_a_ticket_has_become(f: Fixture) {
    let [a, b, c] = f.players("lock");
    assert!(b.peeks().await.lease.is_none() && b.peeks().await.is_due(), "there is no such lock");
    let lease = a.takes().await;
    assert!(b.peeks().await.is_due(), "nobody waits: b has no ticket");
    b.queues().await;
    c.queues().await;
    let peek = b.peeks().await;
    assert!(peek.lease.is_none() && !peek.is_due(), "{peek:?}");
    a.releases(&lease).await;
    assert_eq!(b.peeks().await.lease.as_ref(), b.record().await.lease(&b.id()));
    assert!(b.peeks().await.lease.is_some() && c.peeks().await.lease.is_none());
}

pub async fn a_peek_says_that_something_has_ended(f: Fixture) {
    let [a, b] = f.players("lock");
    a.takes().await;
    for _ in 0..2 {
        b.queues().await;
        assert!(!b.peeks().await.is_due());
        f.pass(4_000);
    }
    b.queues().await;
    f.outlast(2_000);
    assert!(b.peeks().await.is_due(), "a's lease has ended");
}

pub async fn a_refreshed_ticket_makes_nobody_ask_again(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let mut lease = a.takes().await;
    b.queues().await;
    c.queues().await;
    // For longer than the initial lifetime of every lease and ticket.
    for _ in 0..8 {
        f.pass(3_000);
        let Outcome::Renewed(renewed) = a.renews(&lease).await else { panic!("not renewed") };
        lease = renewed;
        assert_eq!((b.queues().await.ahead, c.queues().await.ahead), (0, 1));
        assert!(!b.peeks().await.is_due() && !c.peeks().await.is_due());
    }
}

pub async fn a_long_queue_is_refreshed_and_served_in_order(f: Fixture) {
    const WAITERS: usize = 150;
    let [a] = f.players("lock");
    let mut lease = a.takes().await;
    let waiters: Vec<Player> = (0..WAITERS as u128).map(|number| f.player(number + 2, "lock")).collect();
    for (place, player) in waiters.iter().enumerate() {
        assert_eq!(player.queues().await.ahead as usize, place);
    }
    // For longer than the lifetime of a ticket without a refresh.
    for _ in 0..2 {
        f.pass(3_000);
        let Outcome::Renewed(renewed) = a.renews(&lease).await else { panic!("not renewed") };
        lease = renewed;
        for (place, player) in waiters.iter().enumerate() {
            let queued = player.queues().await;
            assert_eq!((queued.ahead as usize, queued.conflict.waiters as usize), (place, WAITERS));
            assert_eq!(queued.conflict.holders.len(), 1);
        }
    }
    let record = a.record().await;
    assert!(record.waiters.iter().map(|ticket| ticket.ask.lease_id).eq(waiters.iter().map(Player::id)));
    assert!(record.waiters.iter().all(|ticket| ticket.expires_at == f.clock.now().plus(Ttl::from_secs(5))));
    // One waiter in the middle leaves, and one of higher priority goes to the front.
    waiters[70].leaves().await;
    let urgent = f.player(1_000_000, "lock").priority(5);
    assert_eq!(urgent.queues().await.ahead, 0);
    a.releases(&lease).await;
    assert!(urgent.holds().await);
    assert_eq!(waiters[71].queues().await.ahead, 70);
    let holder = urgent.record().await.holders[0].clone();
    urgent.releases(&holder).await;
    assert!(waiters[0].peeks().await.lease.is_some());
}
