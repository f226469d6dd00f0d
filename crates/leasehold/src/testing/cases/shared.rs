//! Readers share, writers do not, and no caller starves.

use crate::model::Outcome;
use crate::testing::{Fixture, Player};

fn readers<const N: usize>(f: &Fixture) -> [Player; N] {
    f.players("lock").map(Player::shared)
}

pub async fn readers_share(f: Fixture) {
    let [a, b, c] = readers(&f);
    let tokens = [a.takes().await.token, b.takes().await.token, c.takes().await.token];
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2]);
    assert_eq!(a.record().await.holders.len(), 3);
}

pub async fn a_writer_waits_for_every_reader(f: Fixture) {
    let [a, b] = readers(&f);
    let writer = f.player(9, "lock");
    let (first, second) = (a.takes().await, b.takes().await);
    assert_eq!(writer.queues().await.conflict.holders.len(), 2);
    a.releases(&first).await;
    assert!(!writer.holds().await);
    b.releases(&second).await;
    assert!(writer.holds().await);
}

pub async fn readers_behind_a_waiting_writer_wait_too(f: Fixture) {
    let [a, b] = readers(&f);
    let writer = f.player(9, "lock");
    let lease = a.takes().await;
    writer.queues().await;
    let conflict = b.is_refused().await;
    assert_eq!(conflict.waiters, 1);
    assert_eq!(b.queues().await.ahead, 1);
    a.releases(&lease).await;
    assert!(writer.holds().await && !b.holds().await);
}

pub async fn each_reader_ends_by_itself(f: Fixture) {
    let [a, b] = readers(&f);
    let writer = f.player(9, "lock");
    let first = a.takes().await;
    f.pass(6_000);
    b.takes().await;
    f.pass(6_000);
    assert!(matches!(a.renews(&first).await, Outcome::NotHeld(_)));
    assert_eq!(writer.is_refused().await.holders.len(), 1);
    f.pass(4_000);
    writer.takes().await;
}

pub async fn a_reader_does_not_get_past_a_writer(f: Fixture) {
    let [a] = readers(&f);
    let writer = f.player(9, "lock");
    writer.takes().await;
    a.is_refused().await;
}

pub async fn readers_at_the_front_are_served_together(f: Fixture) {
    let [a, b, c] = readers(&f);
    let (writer, last) = (f.player(9, "lock"), f.player(10, "lock"));
    let lease = writer.takes().await;
    a.queues().await;
    b.queues().await;
    last.queues().await;
    c.queues().await;
    writer.releases(&lease).await;
    assert!(a.holds().await && b.holds().await);
    assert!(!last.holds().await && !c.holds().await);
}
