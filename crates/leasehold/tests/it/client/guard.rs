//! Guards: renewal, state, loss, release.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{EventKind, Holder, LockOp, Reason, Timestamp};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, ListEvents};
use leasehold::testing::Fault;
use leasehold::{BootInstant, Error, GuardState, Leasehold};

use super::support::{TTL, faulty, memory, name, until};

#[tokio::test]
async fn a_guard_outlives_its_ttl() {
    let leasehold = memory().await;
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    let token = guard.token();
    until("five renewals", async || {
        leasehold.locks().status(&name("lock")).await.unwrap().holders[0].renewals >= 5
    })
    .await;
    assert_eq!((guard.state(), guard.token()), (GuardState::Held, token));
    guard.release().await.unwrap();
    assert!(!leasehold.locks().status(&name("lock")).await.unwrap().is_locked);
}

/// The thread of the caller is blocked for three times the TTL.
#[tokio::test(flavor = "current_thread")]
async fn work_that_blocks_its_runtime_does_not_lose_its_lease() {
    let leasehold = memory().await;
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    std::thread::sleep(TTL * 3);
    assert_eq!(guard.state(), GuardState::Held);
    assert!(leasehold.lock("lock").acquire().await.is_err());
}

#[tokio::test]
async fn a_failed_renewal_makes_a_guard_uncertain_and_the_next_makes_it_held() {
    let (store, leasehold, _) = faulty();
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    let mut status = guard.watch();
    store.plan([Fault::LoseRequest, Fault::LoseAnswer]);
    status.wait_for(|status| status.state == GuardState::Uncertain).await.unwrap();
    status.wait_for(|status| status.state == GuardState::Held).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_hangs_does_not_delay_that_of_another_lock() {
    let (store, leasehold, other) = faulty();
    let guard = leasehold.lock("first").and("second").ttl(TTL).acquire().await.unwrap();
    store.plan([Fault::Hang]);
    for lock in ["first", "second"] {
        until("a renewal", async || other.locks().status(&name(lock)).await.unwrap().holders[0].renewals > 0)
            .await;
    }
    drop(guard);
}

#[tokio::test]
async fn an_unavailable_store_loses_the_lease_in_time() {
    let (store, leasehold, _) = faulty();
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    let cancelled = guard.cancellation_token();
    store.from_now_on(Fault::Hang);
    guard.lost().await;
    let late = BootInstant::now().after(guard.watch().borrow().valid_until);
    assert!(late < TTL / 2, "reported {late:?} after the deadline");
    assert_eq!(guard.state(), GuardState::Lost);
    assert!(cancelled.is_cancelled());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

/// The renewal thread is blocked in the store, as in SQLite while the disk is busy.
#[tokio::test]
async fn a_store_that_blocks_its_thread_does_not_hide_the_deadline() {
    let (store, leasehold, _) = faulty();
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    store.plan([Fault::Block(TTL * 5)]);
    guard.lost().await;
    let late = BootInstant::now().after(guard.watch().borrow().valid_until);
    assert!(late < TTL, "reported {late:?} after the deadline");
}

#[tokio::test]
async fn a_panic_in_the_store_loses_the_lease_at_its_deadline() {
    let (store, leasehold, _) = faulty();
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    store.plan([Fault::Panic]);
    tokio::time::timeout(TTL * 10, guard.lost()).await.expect("the guard is lost");
    assert!(BootInstant::now() >= guard.watch().borrow().valid_until);
}

#[tokio::test]
async fn a_permanent_store_error_loses_the_lease_at_once() {
    let (store, leasehold, _) = faulty();
    let ttl = Duration::from_mins(1);
    let guard = leasehold.lock("lock").ttl(ttl).renew_at(0.05).acquire().await.unwrap();
    store.from_now_on(Fault::Refuse);
    tokio::time::timeout(ttl / 2, guard.lost()).await.expect("the loss is reported before the deadline");
    assert_eq!(
        guard.loss().unwrap().to_string(),
        "the lease on lock 'lock' was lost: it cannot be renewed: the store is gone"
    );
}

#[tokio::test]
async fn a_single_permanent_error_loses_no_lease() {
    let (store, leasehold, _) = faulty();
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    let mut status = guard.watch();
    store.plan([Fault::Refuse]);
    status.wait_for(|status| status.state == GuardState::Uncertain).await.unwrap();
    status.wait_for(|status| status.state == GuardState::Held).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn work_is_dropped_when_its_lease_is_lost() {
    let (store, leasehold, _) = faulty();
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    store.from_now_on(Fault::LoseRequest);
    let (dropped, is_dropped) = tokio::sync::oneshot::channel::<()>();
    let done = guard.run(async move |_| {
        let _dropped = dropped;
        std::future::pending::<()>().await;
    });
    let error = done.await.unwrap_err();
    assert_eq!(error.to_string(), "the lease on lock 'lock' was lost: it could not be renewed in time");
    is_dropped.await.unwrap_err();
}

#[tokio::test]
async fn guarded_work_sees_its_token_and_releases_when_done() {
    let leasehold = memory().await;
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    let token = guard.token();
    let seen = guard.run(async |lease| lease.token()).await.unwrap();
    assert_eq!(seen, token);
    assert!(!leasehold.locks().status(&name("lock")).await.unwrap().is_locked);
}

#[tokio::test]
async fn a_lease_taken_by_force_is_lost_at_the_next_renewal() {
    let leasehold = memory().await;
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    let (by, reason) = (Holder::new("admin").unwrap(), Reason::new("stuck").unwrap());
    leasehold.locks().force_release(&name("lock"), guard.token(), by, reason).await.unwrap();
    guard.lost().await;
    let error = leasehold.locks().check_fence(&name("lock"), guard.token()).await.unwrap_err();
    assert_eq!(error.code(), "STALE_TOKEN");
}

#[tokio::test]
async fn a_guard_receives_a_release_request() {
    let leasehold = memory().await;
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    let reason = Reason::new("deploy").ok();
    assert_eq!(
        leasehold.locks().request_release(&name("lock"), Holder::new("ada").unwrap(), reason).await.unwrap(),
        1
    );
    let request = guard.release_requested().await;
    assert_eq!((request.by.as_str(), request.reason.unwrap().as_str()), ("ada", "deploy"));
    assert_eq!(guard.state(), GuardState::Held);
}

#[tokio::test]
async fn a_dropped_guard_is_released() {
    let leasehold = memory().await;
    drop(leasehold.lock("lock").acquire().await.unwrap());
    leasehold.clone().close().await;
    assert!(!leasehold.locks().status(&name("lock")).await.unwrap().is_locked);
}

#[test]
fn a_guard_may_be_dropped_outside_a_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (leasehold, guard) = runtime.block_on(async {
        let leasehold = memory().await;
        let guard = leasehold.lock("lock").acquire().await.unwrap();
        (leasehold, guard)
    });
    drop(guard);
    runtime.block_on(until("released", async || {
        !leasehold.locks().status(&name("lock")).await.unwrap().is_locked
    }));
}

#[tokio::test]
async fn a_release_with_at_least_blocks_other_holders() {
    let leasehold = memory().await;
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    guard.release_at_least(Duration::from_mins(1)).await.unwrap();
    let status = leasehold.locks().status(&name("lock")).await.unwrap();
    assert!(status.is_locked && !status.is_stale);
    leasehold.lock("lock").acquire().await.unwrap_err();
}

/// The guard is renewed until its maximum hold time, and not longer: the work ends although the
/// store would renew the lease. The clock of the store stands still, so that a busy machine does
/// not expire the lease there.
#[tokio::test]
async fn a_guard_is_lost_after_its_maximum_hold_time() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let leasehold = Leasehold::with_store(Arc::new(MemoryStore::with_clock(clock))).unwrap();
    let (ttl, max_hold) = (Duration::from_secs(2), Duration::from_secs(4));
    let started = BootInstant::now();
    let guard = leasehold.lock("lock").ttl(ttl).max_hold(max_hold).acquire().await.unwrap();
    let valid_until = guard.watch().borrow().valid_until;
    assert!(
        valid_until <= started.plus(ttl + Duration::from_secs(1)),
        "the lease has to be renewed before the limit"
    );
    let stopped = guard.run(async |_| std::future::pending::<()>().await).await.unwrap_err();
    let held = BootInstant::now().after(started);
    assert!(max_hold <= held, "it ended after {held:?}");
    assert!(stopped.error.to_string().contains("it was held for 4s"), "{}", stopped.error);
    until("it is released", async || !leasehold.locks().status(&name("lock")).await.unwrap().is_locked).await;
    let last = leasehold.locks().status(&name("lock")).await.unwrap().last.unwrap();
    assert_eq!(last.status, EventKind::Released, "it was not left to expire");
}

#[tokio::test]
async fn a_guard_that_lasts_until_its_maximum_hold_time_is_not_renewed() {
    let (store, leasehold, _) = faulty();
    let request = leasehold.lock("lock").ttl(Duration::from_mins(1)).max_hold(Duration::from_millis(300));
    let guard = request.acquire().await.unwrap();
    guard.lost().await;
    assert!(!store.sent().iter().any(|op| matches!(op, LockOp::Renew(_))), "{:?}", store.sent());
    assert!(leasehold.lock("lock").max_hold(Duration::ZERO).acquire().await.is_err());
}

#[tokio::test]
async fn renewals_are_recorded_in_the_history_on_request() {
    let leasehold = memory().await;
    let renewed = async || {
        let events = leasehold.locks().history(&ListEvents::default()).await.unwrap().items;
        events.iter().filter(|event| event.kind == EventKind::Renewed).count()
    };
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    until("a renewal", async || {
        leasehold.locks().status(&name("lock")).await.unwrap().holders[0].renewals > 0
    })
    .await;
    assert_eq!(renewed().await, 0);
    guard.release().await.unwrap();
    let logging = leasehold.logging_renewals();
    let guard = logging.lock("lock").ttl(TTL).acquire().await.unwrap();
    until("two renewals", async || renewed().await >= 2).await;
    let (lease_id, token) = (guard.lease_id(), guard.token());
    let held = guard.detach();
    let before = renewed().await;
    logging.locks().renew(&held[0].0, lease_id, token, None).await.unwrap();
    assert_eq!(renewed().await, before + 1);
}
