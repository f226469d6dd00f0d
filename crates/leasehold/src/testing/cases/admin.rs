//! Administrative operations on locks of other holders.

use crate::model::{Outcome, Status, Ttl};
use crate::testing::{Fixture, Player};

pub async fn a_holder_learns_that_it_was_asked(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    f.pass(1_000);
    assert_eq!(b.asks_for_release().await, Outcome::Asked(1));
    let Outcome::Renewed(renewed) = a.renews(&lease).await else { panic!("not renewed") };
    assert_eq!(renewed.status, Status::Releasing);
    let asked = renewed.asked.clone().expect("who asked");
    assert_eq!((asked.by, asked.at), (b.ask.holder.clone(), f.clock.now()));
    assert_eq!(asked.reason.expect("why").as_str(), "deploy");
    b.is_refused().await;
    assert!(matches!(a.releases(&renewed).await, Outcome::Released(_)));
}

pub async fn asking_for_a_free_lock_finds_nobody(f: Fixture) {
    let [a, b] = f.players("lock");
    assert!(matches!(b.asks_for_release().await, Outcome::NotHeld(_)));
    a.takes().await;
    f.outlast(10_000);
    assert!(matches!(b.asks_for_release().await, Outcome::NotHeld(_)));
}

pub async fn a_force_release_compares_the_token(f: Fixture) {
    let [a, b, admin] = f.players("lock");
    let seen = a.takes().await;
    a.releases(&seen).await;
    b.takes().await;
    let outcome = admin.forces(seen.token).await;
    let Outcome::NotHeld(now) = outcome else { panic!("{outcome:?}") };
    assert_eq!(now.holders[0].holder, b.ask.holder);
    assert!(b.holds().await);
}

pub async fn a_force_release_makes_the_token_old(f: Fixture) {
    let [a, admin] = f.players("lock");
    let lease = a.takes().await;
    let Outcome::Forced(forced) = admin.forces(lease.token).await else { panic!("not forced") };
    assert_eq!(forced.token, lease.token);
    let record = a.record().await;
    assert!(record.token > lease.token, "the zombie's token must not be the newest");
    assert!(record.holders.is_empty());
    assert!(matches!(a.renews(&lease).await, Outcome::NotHeld(_)));
}

pub async fn a_force_release_hands_over(f: Fixture) {
    let [a, b, admin] = f.players("lock");
    let lease = a.takes().await;
    b.queues().await;
    admin.forces(lease.token).await;
    assert!(b.holds().await && !a.holds().await);
}

pub async fn a_lease_without_a_sign_of_life_can_be_stolen(f: Fixture) {
    let [a, b] = f.players("lock");
    let thief = b.thief(4);
    let lease = a.takes().await;
    f.pass(3_999);
    thief.is_refused().await;
    a.renews(&lease).await;
    f.pass(3_999);
    thief.is_refused().await;
    f.outlast(1);
    let stolen = thief.takes().await;
    assert!(stolen.token > lease.token);
    assert!(matches!(a.renews(&lease).await, Outcome::NotHeld(_)));
    // A holder's own lease is never stale to itself.
    f.pass(5_000);
    assert_eq!(thief.takes().await.token, stolen.token);
}

pub async fn a_thief_stands_in_line_too(f: Fixture) {
    let [a, b, c] = f.players("lock");
    let thief = c.thief(4);
    a.takes().await;
    f.pass(3_000);
    b.queues().await;
    f.pass(1_000);
    let outcome = thief.asks_in_line().await;
    assert!(matches!(outcome, Outcome::Queued(_)), "{outcome:?}");
    assert!(b.holds().await && !a.holds().await);
}

pub async fn a_thief_takes_only_what_is_in_its_way(f: Fixture) {
    let [a, b] = f.players("lock").map(Player::shared);
    a.takes().await;
    f.pass(4_000);
    b.thief(4).takes().await;
    assert!(a.holds().await, "there was room for both");
    let [one, two, thief] = [11, 12, 13].map(|number| f.player(number, "counted").slots(2));
    one.takes().await;
    f.pass(1_000);
    two.takes().await;
    f.pass(4_000);
    thief.thief(4).takes().await;
    assert!(!one.holds().await && two.holds().await, "the stalest is enough");
}

pub async fn a_lease_that_is_kept_cannot_be_stolen(f: Fixture) {
    let [a, b] = f.players("lock");
    let lease = a.takes().await;
    a.releases_with(lease.token, Some(Ttl::from_secs(20))).await;
    f.pass(19_999);
    b.thief(1).is_refused().await;
}
