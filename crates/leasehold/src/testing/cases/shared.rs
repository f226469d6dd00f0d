//! Several holders at once: readers share, writers do not, and no caller starves; a counted lock has a
//! limited number of holders.

use crate::model::Outcome;
use crate::testing::{Fixture, TestClient};

fn readers<const N: usize>(f: &Fixture) -> [TestClient; N] {
    f.clients("lock").map(TestClient::shared)
}

pub async fn shared_holders_coexist(f: Fixture) {
    let [a, b, c] = readers(&f);
    let tokens = [a.acquire().await.token, b.acquire().await.token, c.acquire().await.token];
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2]);
    assert_eq!(a.record().await.holders.len(), 3);
}

pub async fn an_exclusive_request_waits_for_every_shared_holder(f: Fixture) {
    let [a, b] = readers(&f);
    let writer = f.client(9, "lock");
    let (first, second) = (a.acquire().await, b.acquire().await);
    assert_eq!(writer.expect_queued().await.conflict.holders.len(), 2);
    a.release(&first).await;
    assert!(!writer.holds().await);
    b.release(&second).await;
    assert!(writer.holds().await);
}

pub async fn shared_requests_behind_an_exclusive_waiter_wait(f: Fixture) {
    let [a, b] = readers(&f);
    let writer = f.client(9, "lock");
    let lease = a.acquire().await;
    writer.expect_queued().await;
    let conflict = b.expect_conflict().await;
    assert_eq!(conflict.waiters, 1);
    assert_eq!(b.expect_queued().await.ahead, 1);
    a.release(&lease).await;
    assert!(writer.holds().await && !b.holds().await);
}

pub async fn each_shared_lease_expires_by_itself(f: Fixture) {
    let [a, b] = readers(&f);
    let writer = f.client(9, "lock");
    let first = a.acquire().await;
    f.pass(6_000);
    b.acquire().await;
    f.pass(6_000);
    assert!(matches!(a.renew(&first).await, Outcome::NotHeld(_)));
    assert_eq!(writer.expect_conflict().await.holders.len(), 1);
    f.pass(4_000);
    writer.acquire().await;
}

pub async fn a_shared_request_does_not_overtake_an_exclusive_waiter(f: Fixture) {
    let [a] = readers(&f);
    let writer = f.client(9, "lock");
    writer.acquire().await;
    a.expect_conflict().await;
}

pub async fn shared_waiters_at_the_front_are_granted_together(f: Fixture) {
    let [a, b, c] = readers(&f);
    let (writer, last) = (f.client(9, "lock"), f.client(10, "lock"));
    let lease = writer.acquire().await;
    a.expect_queued().await;
    b.expect_queued().await;
    last.expect_queued().await;
    c.expect_queued().await;
    writer.release(&lease).await;
    assert!(a.holds().await && b.holds().await);
    assert!(!last.holds().await && !c.holds().await);
}

pub async fn a_counted_lock_grants_its_slots_and_no_more(f: Fixture) {
    let [a, b, c] = f.clients("lock").map(|client: TestClient| client.slots(2));
    let lease = a.acquire().await;
    b.acquire().await;
    assert_eq!(c.expect_conflict().await.holders.len(), 2);
    a.release(&lease).await;
    c.acquire().await;
}

pub async fn the_smallest_number_of_slots_applies(f: Fixture) {
    let [alone, one_of_three, another] = f.clients("lock");
    let (one_of_three, another) = (one_of_three.slots(3), another.slots(3));
    let lease = alone.acquire().await;
    one_of_three.expect_conflict().await;
    alone.release(&lease).await;
    one_of_three.acquire().await;
    alone.expect_conflict().await;
    another.acquire().await;
}

pub async fn a_freed_slot_goes_to_the_queue(f: Fixture) {
    let [a, b, c, late] = f.clients("lock").map(|client: TestClient| client.slots(2));
    let lease = a.acquire().await;
    b.acquire().await;
    c.expect_queued().await;
    a.release(&lease).await;
    assert!(c.holds().await);
    late.expect_conflict().await;
}
