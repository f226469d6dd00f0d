//! Administrative operations on locks of other holders.

use crate::model::{LeaseStatus, Outcome, Ttl};
use crate::testing::{Fixture, TestClient};

pub async fn a_holder_learns_of_a_release_request(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    f.pass(1_000);
    assert_eq!(b.request_release().await, Outcome::ReleaseRequested(1));
    let Outcome::Renewed(renewed) = a.renew(&lease).await else { panic!("not renewed") };
    assert_eq!(renewed.status, LeaseStatus::Releasing);
    let asked = renewed.release_request.clone().expect("who asked");
    assert_eq!((asked.by, asked.at), (b.request.holder.clone(), f.clock.now()));
    assert_eq!(asked.reason.expect("why").as_str(), "deploy");
    b.expect_conflict().await;
    assert!(matches!(a.release(&renewed).await, Outcome::Released(_)));
}

pub async fn a_release_request_for_a_free_lock_is_not_held(f: Fixture) {
    let [a, b] = f.clients("lock");
    assert!(matches!(b.request_release().await, Outcome::NotHeld(_)));
    a.acquire().await;
    f.advance_past(10_000);
    assert!(matches!(b.request_release().await, Outcome::NotHeld(_)));
}

pub async fn a_force_release_compares_the_token(f: Fixture) {
    let [a, b, admin] = f.clients("lock");
    let seen = a.acquire().await;
    a.release(&seen).await;
    b.acquire().await;
    let outcome = admin.force_release(seen.token).await;
    let Outcome::NotHeld(now) = outcome else { panic!("{outcome:?}") };
    assert_eq!(now.holders[0].holder, b.request.holder);
    assert!(b.holds().await);
}

pub async fn a_force_release_raises_the_token(f: Fixture) {
    let [a, admin] = f.clients("lock");
    let lease = a.acquire().await;
    let Outcome::Forced(forced) = admin.force_release(lease.token).await else { panic!("not forced") };
    assert_eq!(forced.token, lease.token);
    let record = a.record().await;
    assert!(record.token > lease.token, "the zombie's token must not be the newest");
    assert!(record.holders.is_empty());
    assert!(matches!(a.renew(&lease).await, Outcome::NotHeld(_)));
}

pub async fn a_force_release_hands_over(f: Fixture) {
    let [a, b, admin] = f.clients("lock");
    let lease = a.acquire().await;
    b.expect_queued().await;
    admin.force_release(lease.token).await;
    assert!(b.holds().await && !a.holds().await);
}

pub async fn a_lease_that_is_not_renewed_can_be_stolen(f: Fixture) {
    let [a, b] = f.clients("lock");
    let thief = b.steal_after(4);
    let lease = a.acquire().await;
    f.pass(3_999);
    thief.expect_conflict().await;
    a.renew(&lease).await;
    f.pass(3_999);
    thief.expect_conflict().await;
    f.advance_past(1);
    let stolen = thief.acquire().await;
    assert!(stolen.token > lease.token);
    assert!(matches!(a.renew(&lease).await, Outcome::NotHeld(_)));
    // A holder's own lease is never stale to itself.
    f.pass(5_000);
    assert_eq!(thief.acquire().await.token, stolen.token);
}

pub async fn a_stealing_request_waits_in_the_queue(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let thief = c.steal_after(4);
    a.acquire().await;
    f.pass(3_000);
    b.expect_queued().await;
    f.pass(1_000);
    let outcome = thief.try_acquire_queued().await;
    assert!(matches!(outcome, Outcome::Queued(_)), "{outcome:?}");
    assert!(b.holds().await && !a.holds().await);
}

pub async fn a_stealing_request_ends_only_conflicting_leases(f: Fixture) {
    let [a, b] = f.clients("lock").map(TestClient::shared);
    a.acquire().await;
    f.pass(4_000);
    b.steal_after(4).acquire().await;
    assert!(a.holds().await, "there was room for both");
    let [one, two, thief] = [11, 12, 13].map(|number| f.client(number, "counted").slots(2));
    one.acquire().await;
    f.pass(1_000);
    two.acquire().await;
    f.pass(4_000);
    thief.steal_after(4).acquire().await;
    assert!(!one.holds().await && two.holds().await, "the stalest is enough");
}

pub async fn a_retained_lease_cannot_be_stolen(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    a.release_with(lease.token, Some(Ttl::from_secs(20))).await;
    f.pass(19_999);
    b.steal_after(1).expect_conflict().await;
}
