//! One holder at a time: acquire, renew, release, expiry, tokens.

use std::time::Duration;

use crate::model::{Lease, LeaseRef, LeaseStatus, LockOp, Outcome, Renew, Token, Ttl};
use crate::testing::Fixture;

pub async fn a_free_lock_is_granted(f: Fixture) {
    let [a] = f.clients("lock");
    let now = f.clock.now();
    let lease = a.acquire().await;
    assert_eq!(lease.request.lease_id, a.id());
    assert_eq!(
        (lease.acquired_at, lease.renewed_at, lease.expires_at),
        (now, now, now.plus(Ttl::from_secs(10)))
    );
    assert_eq!(a.record().await.holders, [lease]);
}

pub async fn a_held_lock_is_refused_and_the_conflict_names_the_holder(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    f.pass(1_000);
    let conflict = b.expect_conflict().await;
    assert_eq!(conflict.holders.len(), 1);
    let held = &conflict.holders[0];
    assert_eq!(held.holder, a.request.holder);
    assert_eq!((held.since, held.until, held.token), (lease.acquired_at, lease.expires_at, lease.token));
    assert_eq!(held.lease, Some(LeaseRef::of(&a.id())), "a name of the lease that opens nothing");
    assert!(conflict.left(held).is_some_and(|left| left <= Duration::from_secs(10)), "{conflict:?}");
    assert_eq!(conflict.waiters, 0);
    assert!(!b.holds().await);
}

pub async fn a_repeated_request_gets_the_same_lease(f: Fixture) {
    let [a] = f.clients("lock");
    let first = a.acquire().await;
    f.pass(4_000);
    let again = a.acquire().await;
    assert_eq!((again.token, again.acquired_at), (first.token, first.acquired_at));
    assert_eq!(again.expires_at, f.clock.now().plus(a.request.ttl));
    assert_eq!(a.record().await.holders.len(), 1);
}

pub async fn a_lease_is_valid_until_exactly_its_expiry(f: Fixture) {
    let [a, b] = f.clients("lock");
    a.acquire().await;
    f.clock.advance(Duration::from_micros(a.request.ttl.as_micros() - 1));
    b.expect_conflict().await;
    f.clock.advance(Duration::from_micros(1));
    b.acquire().await;
}

pub async fn an_expired_lease_is_taken_over_and_reported(f: Fixture) {
    let [a, b] = f.clients("lock");
    let old = a.acquire().await;
    f.advance_past(10_000);
    let new = b.acquire().await;
    assert!(new.token > old.token);
    assert!(!a.holds().await);
    assert!(matches!(a.release(&old).await, Outcome::NotHeld(_)));
    assert!(b.holds().await);
}

/// The answer to a grant names the lease that ended without a release; the record does not store
/// it.
pub async fn a_takeover_names_the_previous_lease(f: Fixture) {
    let [a, b, c] = f.clients("lock");
    let first = a.acquire().await;
    assert_eq!(first.took_over, None);
    f.advance_past(13_000);
    let second = b.acquire().await;
    let before = second.took_over.clone().expect("a lease that expired");
    assert_eq!((&before.holder, before.token), (&a.request.holder, first.token));
    assert_eq!((before.renewed_at, before.expires_at), (first.renewed_at, first.expires_at));
    assert_eq!(b.record().await.holders, [Lease { took_over: None, ..second.clone() }]);
    assert_eq!(b.acquire().await.took_over, None, "asked again, it is the same lease");
    b.release(&second).await;
    assert_eq!(c.acquire().await.took_over, None, "a lease that was released is taken over by no caller");
}

pub async fn tokens_rise_across_release_expiry_and_force(f: Fixture) {
    let mut last = Token::default();
    for round in 0..6_u128 {
        let client = f.client(round + 1, "lock");
        let lease = client.acquire().await;
        assert!(lease.token > last, "round {round}");
        last = lease.token;
        match round % 3 {
            0 => drop(client.release(&lease).await),
            1 => f.advance_past(10_000),
            _ => drop(client.force_release(lease.token).await),
        }
    }
}

pub async fn a_token_is_never_less_than_the_clock(f: Fixture) {
    let [a] = f.clients("lock");
    f.pass(5_000);
    let lease = a.acquire().await;
    assert!(lease.token.get() >= f.clock.now().as_micros());
    assert!(lease.token <= Token::MAX);
}

pub async fn a_renewal_extends_the_lease_from_now(f: Fixture) {
    let [a] = f.clients("lock");
    let lease = a.acquire().await;
    f.pass(7_000);
    let Outcome::Renewed(renewed) = a.renew(&lease).await else { panic!("not renewed") };
    assert_eq!(renewed.expires_at, f.clock.now().plus(a.request.ttl));
    assert_eq!((renewed.token, renewed.acquired_at, renewed.renewals), (lease.token, lease.acquired_at, 1));
}

pub async fn a_renewal_may_change_the_ttl(f: Fixture) {
    let [a] = f.clients("lock");
    let lease = a.acquire().await;
    let ttl = Some(Ttl::from_secs(60));
    let renew = LockOp::Renew(Renew { lease_id: a.id(), token: lease.token, ttl });
    assert!(matches!(a.apply(renew).await, Outcome::Renewed(_)));
    f.pass(50_000);
    let Outcome::Renewed(renewed) = a.renew(&lease).await else { panic!("not renewed") };
    assert_eq!(renewed.expires_at, f.clock.now().plus(Ttl::from_secs(60)));
}

pub async fn only_the_exact_lease_renews(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    for (lease_id, token) in [(b.id(), lease.token), (a.id(), Token::default())] {
        let outcome = a.apply(LockOp::Renew(Renew { lease_id, token, ttl: None })).await;
        let Outcome::NotHeld(now) = outcome else { panic!("{outcome:?}") };
        assert_eq!((now.token, now.holders.len()), (lease.token, 1));
    }
    assert_eq!(a.record().await.holders, [lease]);
}

pub async fn an_expired_lease_cannot_be_renewed(f: Fixture) {
    let [a] = f.clients("lock");
    let lease = a.acquire().await;
    f.pass(10_000);
    assert!(matches!(a.renew(&lease).await, Outcome::NotHeld(_)));
    assert!(!a.holds().await);
}

pub async fn only_the_exact_lease_releases(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    assert!(matches!(b.release(&lease).await, Outcome::NotHeld(_)));
    assert!(matches!(a.release_with(Token::default(), None).await, Outcome::NotHeld(_)));
    assert!(a.holds().await);
    assert!(matches!(a.release(&lease).await, Outcome::Released(_)));
    assert!(!a.holds().await);
}

pub async fn a_second_release_is_not_held(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    a.release(&lease).await;
    b.acquire().await;
    assert!(matches!(a.release(&lease).await, Outcome::NotHeld(_)));
    assert!(b.holds().await);
}

/// Both releases happen in the same instant, so that only their client distinguishes them.
pub async fn a_lease_released_by_another_client_is_not_released_again(f: Fixture) {
    let [a] = f.clients("lock");
    let mut elsewhere = a.clone();
    elsewhere.store = f.two.clone();
    let lease = a.acquire().await;
    assert!(matches!(elsewhere.release(&lease).await, Outcome::Released(_)));
    assert!(matches!(a.release(&lease).await, Outcome::NotHeld(_)));
}

pub async fn a_release_with_at_least_keeps_the_lock_held(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    f.pass(2_000);
    for _ in 0..2 {
        // The second release simulates that the first answer was lost.
        let outcome = a.release_with(lease.token, Some(Ttl::from_secs(20))).await;
        let Outcome::Released(kept) = outcome else { panic!("{outcome:?}") };
        assert_eq!(kept.status, LeaseStatus::Released);
        assert_eq!(kept.expires_at, lease.acquired_at.plus(Ttl::from_secs(20)));
    }
    assert!(matches!(a.renew(&lease).await, Outcome::NotHeld(_)));
    f.pass(17_999);
    b.expect_conflict().await;
    f.advance_past(1);
    let next = b.acquire().await;
    let outcome = b.release_with(next.token, Some(Ttl::from_secs(1))).await;
    assert!(matches!(outcome, Outcome::Released(_)));
    f.advance_past(1_000);
    a.acquire().await;
}

pub async fn of_sixteen_concurrent_callers_one_acquires(f: Fixture) {
    for round in 0..20 {
        let tasks: Vec<_> = (0..16_u128)
            .map(|number| f.client(round * 100 + number + 1, &format!("lock-{round}")))
            .map(|client| {
                tokio::spawn(async move { matches!(client.try_acquire().await, Outcome::Granted(_)) })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            won += u32::from(task.await.expect("no panic"));
        }
        assert_eq!(won, 1, "round {round}");
    }
}

pub async fn locks_with_other_names_are_independent(f: Fixture) {
    let (a, b) = (f.client(1, "one"), f.client(2, "two"));
    a.acquire().await;
    b.acquire().await;
}
