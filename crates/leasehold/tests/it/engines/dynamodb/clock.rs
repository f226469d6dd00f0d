//! Expiry of leases does not depend on wall clocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{LockName, Outcome, Ttl};
use leasehold::store::Store;
use leasehold::testing::TestClient;

use super::fault_proxy::{Action, FaultProxy};
use super::support::{at, new_table, separate_client};

const HOUR: i64 = 3600;
const TTL: Duration = Duration::from_millis(1500);

fn client(store: &Arc<dyn Store>, number: u128) -> TestClient {
    let mut client = TestClient::new(
        store.clone(),
        u128::from(fastrand::u64(..)) << 64 | number,
        LockName::new("lock").unwrap(),
    );
    client.request.ttl = Ttl::new(TTL).unwrap();
    client
}

/// Requests the lock until it is granted; returns how long that took.
async fn wait_until_granted(client: &TestClient) -> Duration {
    let started = Instant::now();
    while !matches!(client.try_acquire().await, Outcome::Granted(_)) {
        assert!(started.elapsed() < 5 * TTL, "never granted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    started.elapsed()
}

#[tokio::test]
async fn clocks_that_are_hours_apart_change_nothing() {
    let at = at();
    for (holders, others) in [(HOUR, -HOUR), (-HOUR, HOUR)] {
        let url = format!("{}&clock=watch", new_table(&at).await);
        let (proxy_a, proxy_b) = (
            FaultProxy::before(&url, move |_| Action::Redate(holders)).await,
            FaultProxy::before(&url, move |_| Action::Redate(others)).await,
        );
        let (one, two) =
            (separate_client(&proxy_a.url(&url)).await, separate_client(&proxy_b.url(&url)).await);
        assert!(
            one.locks()
                .now()
                .await
                .unwrap()
                .as_micros()
                .abs_diff(two.locks().now().await.unwrap().as_micros())
                > 7_000_000_000
        );
        let (a, b) = (client(&one, 1), client(&two, 2));
        let lease = a.acquire().await;
        // A renewed lease stays held beyond its first end.
        let started = Instant::now();
        while started.elapsed() < 2 * TTL {
            b.expect_conflict().await;
            assert!(matches!(a.renew(&lease).await, Outcome::Renewed(_)));
            tokio::time::sleep(TTL / 5).await;
        }
        let sent = Instant::now();
        assert!(matches!(a.renew(&lease).await, Outcome::Renewed(_)));
        b.expect_conflict().await;
        let seen = Instant::now();
        wait_until_granted(&b).await;
        assert!(sent.elapsed() >= TTL, "granted while the lock was held");
        assert!(seen.elapsed() < TTL + Duration::from_secs(1), "recovered late: {:?}", seen.elapsed());
        assert!(matches!(a.renew(&lease).await, Outcome::NotHeld(_)));
        // The token rises even if the clock is behind.
        assert!(b.record().await.token > lease.token);
    }
}

#[tokio::test]
async fn a_waiter_acquires_after_the_holder_died() {
    let at = at();
    let url = new_table(&at).await;
    let (one, two) = (separate_client(&url).await, separate_client(&url).await);
    client(&one, 1).acquire().await;
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

/// Neither the connection nor the renewals run on the caller's runtime.
#[tokio::test]
async fn a_guard_is_renewed_while_its_caller_blocks_the_runtime() {
    let at = at();
    let url = new_table(&at).await;
    let (one, two) = (separate_client(&url).await, separate_client(&url).await);
    let holder = leasehold::Leasehold::with_store(one).unwrap();
    let guard = holder.lock("lock").ttl(TTL).acquire().await.unwrap();
    let other = client(&two, 2);
    other.expect_conflict().await;
    std::thread::sleep(2 * TTL);
    other.expect_conflict().await;
    assert!(other.record().await.holders[0].renewals > 0);
    guard.release().await.unwrap();
    other.acquire().await;
}

#[tokio::test]
async fn a_new_client_detects_expiry_only_with_the_date() {
    let at = at();
    let url = new_table(&at).await;
    let dated = format!("{url}&clock=date&skew=500ms");
    let watched = format!("{url}&clock=watch");
    let (holder, watching) = (separate_client(&dated).await, separate_client(&watched).await);
    client(&holder, 1).acquire().await;
    let started = Instant::now();
    // Each attempt comes from a client that has never seen the lock.
    let found = loop {
        let newcomer = client(&separate_client(&dated).await, 2);
        if let Outcome::Granted(lease) = newcomer.try_acquire().await {
            break (newcomer, lease);
        }
        client(&separate_client(&watched).await, 3).expect_conflict().await;
        assert!(started.elapsed() < TTL + Duration::from_secs(5), "the lease never expired by the date");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(started.elapsed() >= TTL, "granted while the lock was held");
    client(&watching, 4).expect_conflict().await;
    let (newcomer, lease) = found;
    newcomer.release(&lease).await;
}

#[tokio::test]
async fn the_date_expires_no_lease_before_its_margin_has_passed() {
    let at = at();
    let url = new_table(&at).await;
    // Two clocks of the service that differ by less than the margin.
    let proxy = FaultProxy::before(&url, |_| Action::Redate(3)).await;
    let dated = format!("{}&clock=date&skew=4s", proxy.url(&url));
    let (one, two) =
        (separate_client(&format!("{url}&clock=date&skew=4s")).await, separate_client(&dated).await);
    let (a, b) = (client(&one, 1), client(&two, 2));
    let sent = Instant::now();
    a.acquire().await;
    wait_until_granted(&b).await;
    assert!(sent.elapsed() >= TTL, "granted while the lock was held");
}

/// Like a cron job whose last run crashed: each command queries the lock once and exits.
#[tokio::test]
async fn by_default_a_single_query_acquires_the_lock_of_a_dead_holder() {
    let at = at();
    let url = new_table(&at).await;
    let lease = client(&separate_client(&url).await, 1).acquire().await;
    // Outcome for a new client after this number of seconds.
    let after = async |seconds: i64| {
        let proxy = FaultProxy::before(&url, move |_| Action::Redate(seconds)).await;
        client(&separate_client(&proxy.url(&url)).await, 2).try_acquire().await
    };
    // One second for dates in whole seconds, and the default skew of 30 s.
    let margin = Duration::from_secs(31);
    let Outcome::Conflict(conflict) = after(20).await else { panic!("granted before the margin had passed") };
    let until = conflict.holders[0].until;
    // The conflict has the time at which this process will regard the lease as expired: after it has
    // observed the lease for its TTL, or when the date has passed.
    let seen_at = lease.acquired_at.plus(Ttl::from_secs(20));
    assert!(until > seen_at && until.since(lease.expires_at) <= margin, "{until} of {lease:?}");
    assert!(matches!(after(40).await, Outcome::Granted(_)), "never recovered");
}

/// Each process knows the service's time to about a second, which must not decide the order of waiters.
#[tokio::test]
async fn waiters_that_join_within_a_second_are_granted_in_order() {
    let at = at();
    let url = new_table(&at).await;
    let holder = client(&separate_client(&url).await, 1);
    let lease = holder.acquire().await;
    let mut waiters = Vec::new();
    for number in 2..8_u128 {
        // The clocks of the service differ: each process has observed a different fraction of a second.
        let back = i64::try_from(number % 3).unwrap();
        let proxy = FaultProxy::before(&url, move |_| Action::Redate(-back)).await;
        let waiter = client(&separate_client(&proxy.url(&url)).await, number);
        waiter.expect_queued().await;
        waiters.push((waiter, proxy));
    }
    let joined: Vec<_> = waiters.iter().map(|(waiter, _)| waiter.id()).collect();
    let queued: Vec<_> = holder.record().await.waiters.iter().map(|ticket| ticket.request.lease_id).collect();
    assert_eq!(queued, joined);
    holder.release(&lease).await;
    assert!(waiters[0].0.holds().await);
}
