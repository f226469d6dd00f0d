//! Sweeping: expired leases and tickets, dead processes, and the state after a restart.

use uuid::Uuid;

use crate::model::{BootId, LockOp, Outcome, Restarted, Sweep, Swept};
use crate::testing::{Fixture, Player};

pub async fn a_sweep_ends_what_has_ended_and_serves_the_queue(f: Fixture) {
    let [a, b, late] = f.players("lock");
    a.takes().await;
    f.pass(4_500);
    late.queues().await;
    f.pass(4_500);
    b.queues().await;
    f.pass(1_000);
    let swept = f.two.locks().sweep(10).await.expect("swept");
    assert_eq!(swept, Swept { leases: 1, tickets: 1, served: 1 });
    assert!(b.holds().await);
}

pub async fn a_sweep_leaves_the_living_alone(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    f.pass(4_999);
    assert_eq!(f.one.locks().sweep(10).await.expect("swept"), Swept::default());
    let record = a.record().await;
    assert_eq!((record.holders, record.waiters.len()), (vec![lease], 1));
}

pub async fn two_sweepers_do_no_harm(f: Fixture) {
    for number in 0..10 {
        f.player(number + 1, &format!("lock-{number}")).takes().await;
    }
    f.outlast(10_000);
    let (one, two) = tokio::join!(f.one.locks().sweep(100), f.two.locks().sweep(100));
    let mut swept = one.expect("swept");
    swept += two.expect("swept");
    assert_eq!(swept.leases, 10);
    f.player(1, "lock-1").takes().await;
    assert_eq!(f.one.locks().sweep(100).await.expect("swept"), Swept::default());
}

pub async fn the_dead_are_swept_before_their_time(f: Fixture) {
    let [a, b, c] = f.players("lock");
    a.takes().await;
    b.queues().await;
    c.queues().await;
    let dead = vec![a.id(), b.id()];
    if !f.one.capabilities().believes_in_processes() {
        return is_not_believed(&c, LockOp::Sweep(Sweep { dead })).await;
    }
    let outcome = c.apply(LockOp::Sweep(Sweep { dead })).await;
    assert_eq!(outcome, Outcome::Swept(Swept { leases: 1, tickets: 1, served: 1 }));
    assert!(c.holds().await);
}

pub async fn a_restart_frees_what_that_boot_held(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let (a, b, c) = (a.of_boot(7), b.of_boot(7), c.of_boot(8));
    a.takes().await;
    b.queues().await;
    c.queues().await;
    let restarted = LockOp::Restarted(Restarted { boot: BootId(Uuid::from_u128(7)) });
    if !f.one.capabilities().believes_in_processes() {
        return is_not_believed(&c, restarted).await;
    }
    let outcome = c.apply(restarted).await;
    assert_eq!(outcome, Outcome::Swept(Swept { leases: 1, tickets: 1, served: 1 }));
    assert!(c.holds().await);
}

pub async fn a_restart_gives_the_others_their_whole_time(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    f.pass(20_000); // Past its ttl, but times from before a restart do not count.
    let restarted = LockOp::Restarted(Restarted { boot: BootId(Uuid::from_u128(7)) });
    if !f.one.capabilities().believes_in_processes() {
        return is_not_believed(&a, restarted).await;
    }
    a.apply(restarted).await;
    b.is_refused().await;
    f.pass(9_999);
    assert!(matches!(a.renews(&lease).await, Outcome::Renewed(_)));
}

/// Asserts that an operation that only an engine may issue is refused, and changes nothing.
async fn is_not_believed(player: &Player, op: LockOp) {
    let before = player.record().await;
    let error = player.store.locks().apply(&player.lock, &op).await.expect_err("not from afar");
    assert_eq!(error.code(), "STORE_NOT_PERMITTED");
    assert_eq!(player.record().await, before);
}
