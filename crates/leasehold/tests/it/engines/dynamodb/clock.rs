//! Who holds is never a matter of what any clock says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{LockName, Outcome, Ttl};
use leasehold::store::Store;
use leasehold::testing::Player;

use super::front::{Fate, Front};
use super::support::{alone, at, new_table};

const HOUR: i64 = 3600;
const TTL: Duration = Duration::from_millis(1500);

fn player(store: &Arc<dyn Store>, number: u128) -> Player {
    let mut player = Player::new(
        store.clone(),
        u128::from(fastrand::u64(..)) << 64 | number,
        LockName::new("lock").unwrap(),
    );
    player.ask.ttl = Ttl::new(TTL).unwrap();
    player
}

/// Asks until it is granted; gives how long that took.
async fn until_granted(player: &Player) -> Duration {
    let started = Instant::now();
    while !matches!(player.asks().await, Outcome::Granted(_)) {
        assert!(started.elapsed() < 5 * TTL, "never granted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    started.elapsed()
}

#[tokio::test]
async fn clocks_that_are_hours_apart_change_nothing() {
    let Some(at) = at() else { return };
    for (holders, others) in [(HOUR, -HOUR), (-HOUR, HOUR)] {
        let url = format!("{}&clock=watch", new_table(&at).await);
        let (front_a, front_b) = (
            Front::before(&url, move |_| Fate::Redate(holders)).await,
            Front::before(&url, move |_| Fate::Redate(others)).await,
        );
        let (one, two) = (alone(&front_a.url(&url)).await, alone(&front_b.url(&url)).await);
        assert!(
            one.locks()
                .now()
                .await
                .unwrap()
                .as_micros()
                .abs_diff(two.locks().now().await.unwrap().as_micros())
                > 7_000_000_000
        );
        let (a, b) = (player(&one, 1), player(&two, 2));
        let lease = a.takes().await;
        // As long as it is renewed, it is held: also past its first end.
        let started = Instant::now();
        while started.elapsed() < 2 * TTL {
            b.is_refused().await;
            assert!(matches!(a.renews(&lease).await, Outcome::Renewed(_)));
            tokio::time::sleep(TTL / 5).await;
        }
        let sent = Instant::now();
        assert!(matches!(a.renews(&lease).await, Outcome::Renewed(_)));
        b.is_refused().await;
        let seen = Instant::now();
        until_granted(&b).await;
        assert!(sent.elapsed() >= TTL, "granted while it was held");
        assert!(seen.elapsed() < TTL + Duration::from_secs(1), "recovered late: {:?}", seen.elapsed());
        assert!(matches!(a.renews(&lease).await, Outcome::NotHeld(_)));
        // The token rises however far back the clock is.
        assert!(b.record().await.token > lease.token);
    }
}

#[tokio::test]
async fn a_waiter_gets_in_after_a_holder_that_died() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let (one, two) = (alone(&url).await, alone(&url).await);
    player(&one, 1).takes().await;
    drop(one);
    let waiter = leasehold::Leasehold::with_store(two).unwrap();
    let started = Instant::now();
    let guard = waiter.lock("lock").wait(Duration::from_secs(20)).acquire().await.unwrap();
    assert!(
        started.elapsed() >= TTL && started.elapsed() < TTL + Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    guard.release().await.unwrap();
}

/// Neither the connection nor the renewals are the caller's runtime's business.
#[tokio::test]
async fn a_guard_is_kept_while_its_caller_does_not_let_anything_else_happen() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let (one, two) = (alone(&url).await, alone(&url).await);
    let holder = leasehold::Leasehold::with_store(one).unwrap();
    let guard = holder.lock("lock").ttl(TTL).acquire().await.unwrap();
    let other = player(&two, 2);
    other.is_refused().await;
    std::thread::sleep(2 * TTL);
    other.is_refused().await;
    assert!(other.record().await.holders[0].renewals > 0);
    guard.release().await.unwrap();
    other.takes().await;
}

#[tokio::test]
async fn whoever_has_just_come_cannot_know_without_the_date_and_does_with_it() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let dated = format!("{url}&clock=date&skew=500ms");
    let watched = format!("{url}&clock=watch");
    let (holder, watching) = (alone(&dated).await, alone(&watched).await);
    player(&holder, 1).takes().await;
    let started = Instant::now();
    // The same lock, each time by somebody who has never seen it.
    let found = loop {
        let newcomer = player(&alone(&dated).await, 2);
        if let Outcome::Granted(lease) = newcomer.asks().await {
            break (newcomer, lease);
        }
        player(&alone(&watched).await, 3).is_refused().await;
        assert!(started.elapsed() < TTL + Duration::from_secs(5), "the date does not judge");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(started.elapsed() >= TTL, "granted while it was held");
    player(&watching, 4).is_refused().await;
    let (newcomer, lease) = found;
    newcomer.releases(&lease).await;
}

#[tokio::test]
async fn the_date_does_not_judge_before_its_margin_is_over() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    // Two clocks of the service that differ by less than the margin.
    let front = Front::before(&url, |_| Fate::Redate(3)).await;
    let dated = format!("{}&clock=date&skew=4s", front.url(&url));
    let (one, two) = (alone(&format!("{url}&clock=date&skew=4s")).await, alone(&dated).await);
    let (a, b) = (player(&one, 1), player(&two, 2));
    let sent = Instant::now();
    a.takes().await;
    until_granted(&b).await;
    assert!(sent.elapsed() >= TTL, "granted while it was held");
}

/// As a cron job does whose last run has crashed: each command looks once and goes.
#[tokio::test]
async fn by_default_a_command_that_looks_once_gets_the_lock_of_a_holder_that_died() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let lease = player(&alone(&url).await, 1).takes().await;
    // What they see after so many seconds.
    let after = async |seconds: i64| {
        let front = Front::before(&url, move |_| Fate::Redate(seconds)).await;
        player(&alone(&front.url(&url)).await, 2).asks().await
    };
    // Its end, a second for dates in whole seconds, and a margin of 30 s.
    let margin = Duration::from_secs(31);
    let Outcome::Conflict(conflict) = after(20).await else { panic!("granted before the margin was over") };
    let told = conflict.holders[0].until;
    // The refusal says when the lease is over for this process: it has to watch it for its ttl, or to wait for the date.
    let seen_at = lease.acquired_at.plus(Ttl::from_secs(20));
    assert!(told > seen_at && told.since(lease.expires_at) <= margin, "{told} of {lease:?}");
    assert!(matches!(after(40).await, Outcome::Granted(_)), "never recovered");
}

/// Each process knows the service's time to about a second: that must not decide who comes first.
#[tokio::test]
async fn those_who_join_within_a_second_are_served_in_their_order() {
    let Some(at) = at() else { return };
    let url = new_table(&at).await;
    let holder = player(&alone(&url).await, 1);
    let lease = holder.takes().await;
    let mut waiters = Vec::new();
    for number in 2..8_u128 {
        // Clocks of the service that differ, as each process has heard another part of a second.
        let back = i64::try_from(number % 3).unwrap();
        let front = Front::before(&url, move |_| Fate::Redate(-back)).await;
        let waiter = player(&alone(&front.url(&url)).await, number);
        waiter.queues().await;
        waiters.push((waiter, front));
    }
    let joined: Vec<_> = waiters.iter().map(|(waiter, _)| waiter.id()).collect();
    let in_line: Vec<_> = holder.record().await.waiters.iter().map(|ticket| ticket.ask.lease_id).collect();
    assert_eq!(in_line, joined);
    holder.releases(&lease).await;
    assert!(waiters[0].0.holds().await);
}
