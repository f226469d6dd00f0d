//! Counted locks: a limited number of holders at once.

use crate::testing::{Fixture, TestClient};

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
