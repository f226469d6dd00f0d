//! Counted locks: a limited number of holders at once.

use crate::testing::{Fixture, Player};

pub async fn so_many_and_no_more(f: Fixture) {
    let [a, b, c] = f.players("lock").map(|player: Player| player.slots(2));
    let lease = a.takes().await;
    b.takes().await;
    assert_eq!(c.is_refused().await.holders.len(), 2);
    a.releases(&lease).await;
    c.takes().await;
}

pub async fn the_smallest_idea_of_how_many_counts(f: Fixture) {
    let [alone, one_of_three, another] = f.players("lock");
    let (one_of_three, another) = (one_of_three.slots(3), another.slots(3));
    let lease = alone.takes().await;
    one_of_three.is_refused().await;
    alone.releases(&lease).await;
    one_of_three.takes().await;
    alone.is_refused().await;
    another.takes().await;
}

pub async fn a_freed_slot_goes_to_the_queue(f: Fixture) {
    let [a, b, c, late] = f.players("lock").map(|player: Player| player.slots(2));
    let lease = a.takes().await;
    b.takes().await;
    c.queues().await;
    a.releases(&lease).await;
    assert!(c.holds().await);
    late.is_refused().await;
}
