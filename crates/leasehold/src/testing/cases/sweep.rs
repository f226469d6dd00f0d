//! Sweeping: expired leases and tickets, dead processes, and the state after a restart.

use uuid::Uuid;

use crate::model::{BootId, LockOp, Outcome, Restarted, Sweep, Swept};
use crate::testing::{Fixture, TestClient};

pub async fn a_sweep_removes_expired_leases_and_grants_waiters(f: Fixture) {
    let [a, b, late] = f.clients("lock");
    a.acquire().await;
    f.pass(4_500);
    late.expect_queued().await;
    f.pass(4_500);
    b.expect_queued().await;
    f.pass(1_000);
    let swept = f.two.locks().sweep(10).await.expect("swept");
    assert_eq!(swept, Swept { leases: 1, tickets: 1, granted: 1 });
    assert!(b.holds().await);
}

pub async fn a_sweep_never_ends_a_live_lease(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    f.pass(4_999);
    assert_eq!(f.one.locks().sweep(10).await.expect("swept"), Swept::default());
    let record = a.record().await;
    assert_eq!((record.holders, record.waiters.len()), (vec![lease], 1));
}

pub async fn two_concurrent_sweeps_are_safe(f: Fixture) {
    for number in 0..10 {
        f.client(number + 1, &format!("lock-{number}")).acquire().await;
    }
    f.advance_past(10_000);
    let (one, two) = tokio::join!(f.one.locks().sweep(100), f.two.locks().sweep(100));
    let mut swept = one.expect("swept");
    swept += two.expect("swept");
    assert_eq!(swept.leases, 10);
    f.client(1, "lock-1").acquire().await;
    assert_eq!(f.one.locks().sweep(100).await.expect("swept"), Swept::default());
}

pub async fn leases_of_dead_processes_are_swept_before_they_expire(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    a.acquire().await;
    b.expect_queued().await;
    c.expect_queued().await;
    let dead = vec![a.id(), b.id()];
    if !f.one.capabilities().trusts_process_state() {
        return is_not_believed(&c, LockOp::Sweep(Sweep { dead })).await;
    }
    let outcome = c.apply(LockOp::Sweep(Sweep { dead })).await;
    assert_eq!(outcome, Outcome::Swept(Swept { leases: 1, tickets: 1, granted: 1 }));
    assert!(c.holds().await);
}

pub async fn a_restart_frees_the_leases_of_that_boot(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let (a, b, c) = (a.of_boot(7), b.of_boot(7), c.of_boot(8));
    a.acquire().await;
    b.expect_queued().await;
    c.expect_queued().await;
    let restarted = LockOp::Restarted(Restarted { boot: BootId(Uuid::from_u128(7)) });
    if !f.one.capabilities().trusts_process_state() {
        return is_not_believed(&c, restarted).await;
    }
    let outcome = c.apply(restarted).await;
    assert_eq!(outcome, Outcome::Swept(Swept { leases: 1, tickets: 1, granted: 1 }));
    assert!(c.holds().await);
}

pub async fn a_restart_gives_other_leases_their_whole_ttl(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    f.pass(20_000); // Past its ttl, but times from before a restart do not count.
    let restarted = LockOp::Restarted(Restarted { boot: BootId(Uuid::from_u128(7)) });
    if !f.one.capabilities().trusts_process_state() {
        return is_not_believed(&a, restarted).await;
    }
    a.apply(restarted).await;
    b.expect_conflict().await;
    f.pass(9_999);
    assert!(matches!(a.renew(&lease).await, Outcome::Renewed(_)));
}

/// Asserts that an operation that only an engine may issue is refused, and changes nothing.
async fn is_not_believed(client: &TestClient, op: LockOp) {
    let before = client.record().await;
    let error = client.store.locks().apply(&client.lock, &op).await.expect_err("not from afar");
    assert_eq!(error.code(), "STORE_NOT_PERMITTED");
    assert_eq!(client.record().await, before);
}
