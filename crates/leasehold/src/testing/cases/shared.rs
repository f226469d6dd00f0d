//! Readers share, writers do not, and no caller starves.

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
