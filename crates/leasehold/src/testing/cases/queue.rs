//! The fair queue: order, hand-over, expiry of tickets, withdrawal.

use std::time::Duration;

use crate::model::{MAX_WAITERS, Outcome, Ttl};
use crate::store::Wakeup;
use crate::testing::{Fixture, TestClient};

pub async fn a_release_hands_over_to_the_first_ticket(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    assert_eq!(b.expect_queued().await.ahead, 0);
    a.release(&lease).await;
    let record = b.record().await;
    assert_eq!((record.holders.len(), record.waiters.len()), (1, 0));
    let handed_over = record.lease(&b.id()).expect("b has it");
    assert!(handed_over.token > lease.token);
    assert_eq!(handed_over.expires_at, f.clock.now().plus(Ttl::from_secs(5)));
}

pub async fn a_handed_over_lease_is_confirmed_by_a_repeated_request(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    a.release(&lease).await;
    let token = b.record().await.lease(&b.id()).expect("b has it").token;
    f.pass(1_000);
    let Outcome::Granted(confirmed) = b.try_acquire_queued().await else { panic!("not granted") };
    assert_eq!(confirmed.token, token);
    assert_eq!(confirmed.expires_at, f.clock.now().plus(b.request.ttl));
}

pub async fn tickets_are_granted_in_order_of_arrival(f: Fixture) {
    let clients: [TestClient; 6] = f.clients("lock");
    let mut lease = clients[0].acquire().await;
    for (place, client) in clients[1..].iter().enumerate() {
        // Some of them arrive in the same microsecond.
        f.clock.advance(Duration::from_micros(place as u64 % 2));
        assert_eq!(client.expect_queued().await.ahead as usize, place);
    }
    for pair in clients.windows(2) {
        pair[0].release(&lease).await;
        lease = pair[1].acquire().await;
    }
}

pub async fn a_higher_priority_is_granted_first(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let urgent = c.priority(5);
    let lease = a.acquire().await;
    b.expect_queued().await;
    f.pass(1_000);
    assert_eq!(urgent.expect_queued().await.ahead, 0);
    a.release(&lease).await;
    assert!(urgent.holds().await && !b.holds().await);
}

pub async fn a_long_wait_outranks_a_higher_priority_that_came_late(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let urgent = c.priority(1);
    let mut lease = a.acquire().await;
    b.expect_queued().await;
    for _ in 0..8 {
        f.pass(4_000);
        let Outcome::Renewed(renewed) = a.renew(&lease).await else { panic!("not renewed") };
        lease = renewed;
        b.expect_queued().await;
    }
    assert_eq!(urgent.expect_queued().await.ahead, 1);
    a.release(&lease).await;
    assert!(b.holds().await);
}

pub async fn no_request_overtakes_a_ticket(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    a.release(&lease).await;
    assert_eq!(c.expect_conflict().await.holders[0].holder, b.request.holder);
    f.pass(5_000);
    // B never confirmed its lease. Now C acquires the lock in one step.
    c.acquire().await;
}

pub async fn a_repeated_request_keeps_its_position(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    c.expect_queued().await;
    f.pass(4_000);
    assert_eq!(b.expect_queued().await.ahead, 0);
    assert_eq!(c.expect_queued().await.ahead, 1);
    f.pass(4_000);
    a.release(&lease).await;
    assert!(b.holds().await);
}

pub async fn a_ticket_that_is_not_refreshed_expires(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    f.pass(3_000);
    c.expect_queued().await;
    f.pass(2_000);
    a.release(&lease).await;
    assert!(c.holds().await && !b.holds().await);
}

pub async fn a_dead_waiter_delays_the_next_by_its_ticket_ttl_only(f: Fixture) {
    let [a, dead, c] = f.clients("lock");
    let lease = a.acquire().await;
    dead.expect_queued().await;
    c.expect_queued().await;
    a.release(&lease).await;
    assert!(dead.holds().await);
    f.pass(4_999);
    assert!(matches!(c.try_acquire_queued().await, Outcome::Queued(_)));
    f.pass(1);
    let outcome = c.try_acquire_queued().await;
    assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
}

pub async fn a_withdrawal_removes_the_ticket(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    c.expect_queued().await;
    assert_eq!(b.withdraw().await, Outcome::Withdrawn);
    assert_eq!(b.withdraw().await, Outcome::Withdrawn);
    a.release(&lease).await;
    assert!(c.holds().await);
}

pub async fn a_withdrawal_returns_a_grant_that_the_waiter_never_saw(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    a.acquire().await;
    b.expect_queued().await;
    c.expect_queued().await;
    a.withdraw().await;
    assert!(b.holds().await);
    b.withdraw().await;
    assert!(c.holds().await && !b.holds().await);
}

pub async fn a_withdrawn_exclusive_ticket_lets_shared_waiters_in(f: Fixture) {
    let [a, b] = f.clients("lock").map(TestClient::shared);
    let writer = f.client(9, "lock");
    a.acquire().await;
    writer.expect_queued().await;
    b.expect_queued().await;
    writer.withdraw().await;
    assert!(b.holds().await);
}

pub async fn the_last_attempt_removes_the_ticket(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    assert_eq!(b.expect_conflict().await.waiters, 0);
    a.release(&lease).await;
    assert!(!b.holds().await);
}

pub async fn a_queue_has_a_maximum_length(f: Fixture) {
    let [a] = f.clients("lock");
    a.acquire().await;
    for number in 0..MAX_WAITERS as u128 {
        f.client(number + 2, "lock").expect_queued().await;
    }
    let outcome = f.client(1_000_000, "lock").try_acquire_queued().await;
    let Outcome::Conflict(conflict) = outcome else { panic!("{outcome:?}") };
    assert!(conflict.full);
    assert_eq!(conflict.waiters as usize, MAX_WAITERS);
}

/// A release wakes the waiter that is granted the lock, and no other one. All waiters may be woken once, when
/// notifications begin to arrive.
pub async fn a_release_wakes_the_waiter_that_is_granted(f: Fixture) {
    let [first, second, third, last] = f.clients("lock");
    first.acquire().await;
    let (mut for_second, mut for_third, mut for_last) =
        (second.subscribe(), third.subscribe(), last.subscribe());
    for waiter in [&second, &third, &last] {
        waiter.expect_queued().await;
    }
    let (poll, mut hints) = (first.store.capabilities().poll, 0);
    for (holder, next, changes) in [(&first, &second, &mut for_second), (&second, &third, &mut for_third)] {
        let lease = holder.acquire().await;
        holder.release(&lease).await;
        // Polling is the contract: `next` returns within the poll interval, and by then the lock is
        // available.
        let woken =
            tokio::time::timeout(poll * 3, changes.next(Duration::MAX)).await.expect("a wake-up or a poll");
        if let Wakeup::Granted(handed_over) = woken {
            assert_eq!(handed_over.lease.request.lease_id, next.id());
        }
        assert!(next.holds().await);
        match for_last.next(poll / 4).await {
            Wakeup::Granted(lease) => panic!("the lease of another waiter: {lease:?}"),
            Wakeup::Hint => hints += 1,
            Wakeup::Missed | Wakeup::Poll => {}
        }
    }
    assert!(hints <= 1, "the last waiter was woken for nothing");
}

/// A caller can wait under the lease id of another caller, or for two locks under one id.
pub async fn a_lease_is_never_delivered_to_a_waiter_for_another_lock(f: Fixture) {
    let (holder_a, holder_b) = (f.client(1, "a"), f.client(3, "b"));
    let (waiter_a, waiter_b) = (f.client(5, "a"), f.client(5, "b"));
    let lease_b = holder_b.acquire().await;
    holder_a.acquire().await;
    // The waiter for lock "a" comes last: a map by lease id alone would deliver the lease of "b" to
    // it.
    let mut for_b = waiter_b.subscribe();
    waiter_b.expect_queued().await;
    let mut for_a = waiter_a.subscribe();
    waiter_a.expect_queued().await;
    holder_b.release(&lease_b).await;
    let poll = waiter_a.store.capabilities().poll;
    for _ in 0..3 {
        let woken = for_a.next(poll.min(Duration::from_millis(200))).await;
        assert!(!matches!(woken, Wakeup::Granted(_)), "the lease of another lock: {woken:?}");
    }
    assert!(!waiter_a.holds().await && waiter_b.holds().await);
    tokio::time::timeout(poll * 3, for_b.next(Duration::MAX)).await.expect("a wake-up or a poll");
}

pub async fn a_peek_shows_the_lease_that_a_ticket_has_become(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    assert!(b.peek().await.lease.is_none() && b.peek().await.is_due(), "there is no such lock");
    let lease = a.acquire().await;
    assert!(b.peek().await.is_due(), "no caller waits: b has no ticket");
    b.expect_queued().await;
    c.expect_queued().await;
    let peek = b.peek().await;
    assert!(peek.lease.is_none() && !peek.is_due(), "{peek:?}");
    a.release(&lease).await;
    assert_eq!(b.peek().await.lease.as_ref(), b.record().await.lease(&b.id()));
    assert!(b.peek().await.lease.is_some() && c.peek().await.lease.is_none());
}

pub async fn a_peek_reports_that_a_lease_or_ticket_has_ended(f: Fixture) {
    let [a, b] = f.clients("lock");
    a.acquire().await;
    for _ in 0..2 {
        b.expect_queued().await;
        assert!(!b.peek().await.is_due());
        f.pass(4_000);
    }
    b.expect_queued().await;
    f.advance_past(2_000);
    assert!(b.peek().await.is_due(), "a's lease has ended");
}

pub async fn a_refreshed_ticket_causes_no_other_request(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let mut lease = a.acquire().await;
    b.expect_queued().await;
    c.expect_queued().await;
    // For longer than the initial lifetime of every lease and ticket.
    for _ in 0..8 {
        f.pass(3_000);
        let Outcome::Renewed(renewed) = a.renew(&lease).await else { panic!("not renewed") };
        lease = renewed;
        assert_eq!((b.expect_queued().await.ahead, c.expect_queued().await.ahead), (0, 1));
        assert!(!b.peek().await.is_due() && !c.peek().await.is_due());
    }
}

pub async fn a_long_queue_is_refreshed_and_granted_in_order(f: Fixture) {
    const WAITERS: usize = 150;
    let [a] = f.clients("lock");
    let mut lease = a.acquire().await;
    let waiters: Vec<TestClient> = (0..WAITERS as u128).map(|number| f.client(number + 2, "lock")).collect();
    for (place, client) in waiters.iter().enumerate() {
        assert_eq!(client.expect_queued().await.ahead as usize, place);
    }
    // For longer than the lifetime of a ticket without a refresh.
    for _ in 0..2 {
        f.pass(3_000);
        let Outcome::Renewed(renewed) = a.renew(&lease).await else { panic!("not renewed") };
        lease = renewed;
        for (place, client) in waiters.iter().enumerate() {
            let queued = client.expect_queued().await;
            assert_eq!((queued.ahead as usize, queued.conflict.waiters as usize), (place, WAITERS));
            assert_eq!(queued.conflict.holders.len(), 1);
        }
    }
    let record = a.record().await;
    assert!(
        record.waiters.iter().map(|ticket| ticket.request.lease_id).eq(waiters.iter().map(TestClient::id))
    );
    assert!(record.waiters.iter().all(|ticket| ticket.expires_at == f.clock.now().plus(Ttl::from_secs(5))));
    // One waiter in the middle leaves, and one of higher priority goes to the front.
    waiters[70].withdraw().await;
    let urgent = f.client(1_000_000, "lock").priority(5);
    assert_eq!(urgent.expect_queued().await.ahead, 0);
    a.release(&lease).await;
    assert!(urgent.holds().await);
    assert_eq!(waiters[71].expect_queued().await.ahead, 70);
    let holder = urgent.record().await.holders[0].clone();
    urgent.release(&holder).await;
    assert!(waiters[0].peek().await.lease.is_some());
}
