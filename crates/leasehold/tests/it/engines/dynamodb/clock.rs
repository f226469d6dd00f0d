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
        let url = new_table(&at).await;
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
    let (holder, watching) = (alone(&dated).await, alone(&url).await);
    player(&holder, 1).takes().await;
    let started = Instant::now();
    // The same lock, each time by somebody who has never seen it.
    let found = loop {
        let newcomer = player(&alone(&dated).await, 2);
        if let Outcome::Granted(lease) = newcomer.asks().await {
            break (newcomer, lease);
        }
        player(&alone(&url).await, 3).is_refused().await;
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
