//! Renewal of a guard: retries until it succeeds or the lease has expired.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use super::guard_core::{Core, GuardState};
use crate::client::background::{Renewable, Renewal, RenewalTimers};
use crate::error::{Error, StoreErrorKind};
use crate::model::{Lease, LeaseStatus, Renew, StopRequest, Timestamp, Token, Ttl};
use crate::store::BootInstant;
use crate::store::backoff::ExponentialBackoff;

const RETRY_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// Delay between the subscription to notifications and the check of the leases.
const SUBSCRIPTION_DELAY: Duration = Duration::from_millis(100);
/// Number of consecutive permanent errors after which the lease is lost at once. A single one may
/// be a transmission error.
const MAX_PERMANENT_ERRORS: u32 = 2;

impl Renewable for Core {
    fn on_timer(self: Arc<Self>, timers: &Arc<RenewalTimers>, now: BootInstant) -> Option<Renewal> {
        if self.timer_fired(timers, now) { Some(Box::pin(renew(self, timers.clone()))) } else { None }
    }
}

/// Renews all leases of a guard and schedules its next renewal. Another thread, which does not depend
/// on this task, watches the deadline as well.
async fn renew(core: Arc<Core>, timers: Arc<RenewalTimers>) {
    let in_progress = RenewalInProgress(core.clone());
    if let Some(left) = core.subscribe()
        && tokio::time::timeout(left, is_unchanged(&core)).await == Ok(true)
    {
        drop(in_progress);
        return core.schedule_next(&timers);
    }
    core.notifications().mark_handled();
    // At the same time: a call may take seconds, and a lost request for one lease must not cost
    // another one its attempts.
    let renewed = match core.len() {
        1 => renew_lease(&core, 0).await,
        leases => try_join_all((0..leases).map(|at| renew_lease(&core, at))).await.map(drop),
    };
    if renewed.is_ok() {
        core.set_state(GuardState::Held);
        // Before the next timer is set: a timer that fired before this drop would find a renewal in
        // progress.
        drop(in_progress);
        core.schedule_next(&timers);
    }
}

/// The guard was released or lost during the renewal.
struct Closed;

/// Renews one lease of a guard. A single failure never ends the loop: only success, the store's
/// report that the lease has ended, repeated permanent errors, or the deadline of the guard does.
async fn renew_lease(core: &Core, at: usize) -> Result<(), Closed> {
    let (name, lease) = core.lease(at);
    let renew = Renew { lease_id: lease.request.lease_id, token: lease.token, ttl: None };
    let (mut backoff, mut permanent_errors, mut failed) = (RETRY_BACKOFF, 0, false);
    loop {
        let sent = BootInstant::now();
        let left = core.valid_until().after(sent);
        if core.is_closed() {
            return Err(Closed);
        }
        if left == Duration::ZERO {
            core.lose_at_deadline();
            return Err(Closed);
        }
        match tokio::time::timeout(left, core.inner.renew(&name, renew.clone())).await {
            Ok(Ok(Ok(lease))) => {
                core.renewed(at, lease, sent);
                if failed {
                    tracing::warn!(lock = %name, "a renewal succeeded after failures");
                }
                return Ok(());
            }
            Ok(Ok(Err(now))) => {
                let holder = now.holders.first().map(|held| format!("{} has the lock now", held.holder));
                let reason = holder.unwrap_or_else(|| "the store no longer knows it".to_owned());
                core.lose(name, reason, Some(at));
                return Err(Closed);
            }
            Ok(Err(error)) => {
                permanent_errors = if is_permanent(&error) { permanent_errors + 1 } else { 0 };
                if permanent_errors == MAX_PERMANENT_ERRORS || is_planted!(StopsRenewingAfterOneFailure) {
                    core.lose(name, format!("it cannot be renewed: {error}"), None);
                    return Err(Closed);
                }
                // Warn once, not at every attempt.
                if failed {
                    tracing::debug!(lock = %name, %error, "a renewal failed again");
                } else {
                    tracing::warn!(lock = %name, %error, "a renewal failed; retrying");
                }
                failed = true;
                core.set_state(GuardState::Uncertain);
            }
            Err(_) => {}
        }
        tokio::time::sleep(backoff.next_delay().min(left)).await;
    }
}

/// Marks the guard as being renewed until dropped, also on a panic.
struct RenewalInProgress(Arc<Core>);

impl Drop for RenewalInProgress {
    fn drop(&mut self) {
        self.0.renewal_ended();
    }
}

/// Returns whether the store has every lease in the state that this guard knows. Other callers may
/// have changed one before the subscription began.
async fn is_unchanged(core: &Core) -> bool {
    // A subscription takes some time to reach the engine.
    tokio::time::sleep(SUBSCRIPTION_DELAY).await;
    for at in 0..core.len() {
        let (name, lease) = core.lease(at);
        // Without an answer nothing is known: another caller may have set a shorter TTL.
        let Ok(peek) = core.locks().peek(&name, &lease.request.lease_id).await else { return false };
        if peek.lease.is_none_or(|found| changeable_parts(&found) != changeable_parts(&lease)) {
            return false;
        }
    }
    true
}

/// Returns the parts of a lease by which a guard notices that another caller has changed the lease. A
/// renewal of its own whose response was lost differs too; it only causes one more renewal.
fn changeable_parts(lease: &Lease) -> (Token, LeaseStatus, Option<&StopRequest>, Ttl, Timestamp) {
    (lease.token, lease.status, lease.release_request.as_ref(), lease.request.ttl, lease.renewed_at)
}

/// Returns whether no later attempt can succeed, for example because the file of the store was
/// removed.
fn is_permanent(error: &Error) -> bool {
    let Error::Store { kind, .. } = error else { return false };
    // A missing permission can be restored: such a lease is retried until its deadline.
    matches!(kind, StoreErrorKind::Broken | StoreErrorKind::Misconfigured | StoreErrorKind::NotSupported)
}
