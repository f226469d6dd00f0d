//! Renewal of a guard: retries until it succeeds or the lease has expired.

use std::sync::Arc;
use std::time::Duration;

use super::guard_core::{Core, GuardState};
use crate::client::background::{Renewable, Renewal, RenewalTimers};
use crate::error::{Error, StoreErrorKind};
use crate::model::{LockName, NotHeld, Renew};
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

/// Renews all leases of a guard and schedules its next renewal. A single failure never ends the
/// loop: only success, the store's report that the lease has ended, repeated permanent errors, or
/// the deadline does. Another thread, which does not depend on this task, watches the deadline as
/// well.
async fn renew(core: Arc<Core>, timers: Arc<RenewalTimers>) {
    let in_progress = RenewalInProgress(core.clone());
    if let Some(left) = core.subscribe()
        && tokio::time::timeout(left, is_unchanged(&core)).await == Ok(true)
    {
        drop(in_progress);
        return core.schedule_next(&timers);
    }
    let (mut backoff, mut permanent_errors, mut failed) = (RETRY_BACKOFF, 0, false);
    loop {
        let left = core.valid_until().after(BootInstant::now());
        if core.is_closed() {
            return;
        }
        if left == Duration::ZERO {
            return core.lose_at_deadline();
        }
        core.notifications().mark_handled();
        match tokio::time::timeout(left, renew_once(&core)).await {
            Ok(Ok(())) => {
                if failed {
                    tracing::warn!(locks = %core.names(), "a renewal succeeded after failures");
                }
                // Before the next timer is set: a timer that fired before this drop would find a
                // renewal in progress.
                drop(in_progress);
                return core.schedule_next(&timers);
            }
            Ok(Err(RenewalFailure::NotHeld { at, name, now })) => {
                let holder = now.holders.first().map(|held| format!("{} has the lock now", held.holder));
                let reason = holder.unwrap_or_else(|| "the store no longer knows it".to_owned());
                return core.lose(name, reason, Some(at));
            }
            Ok(Err(RenewalFailure::Store { name, error })) => {
                permanent_errors = if is_permanent(&error) { permanent_errors + 1 } else { 0 };
                if permanent_errors == MAX_PERMANENT_ERRORS || is_planted!(StopsRenewingAfterOneFailure) {
                    return core.lose(name, format!("it cannot be renewed: {error}"), None);
                }
                // Warn once, not at every attempt.
                if failed {
                    tracing::debug!(locks = %core.names(), %error, "a renewal failed again");
                } else {
                    tracing::warn!(locks = %core.names(), %error, "a renewal failed; retrying");
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
        // If the store does not answer, the renewal will detect it.
        if let Ok(peek) = core.locks().peek(&name, &lease.request.lease_id).await {
            let found = peek.lease.filter(|found| found.token == lease.token);
            if found.is_none_or(|found| {
                (found.status, found.release_request) != (lease.status, lease.release_request)
            }) {
                return false;
            }
        }
    }
    true
}

enum RenewalFailure {
    NotHeld { at: usize, name: LockName, now: Box<NotHeld> },
    Store { name: LockName, error: Error },
}

/// Returns whether no later attempt can succeed, for example because the file of the store was
/// removed.
fn is_permanent(error: &Error) -> bool {
    let Error::Store { kind, .. } = error else { return false };
    // A missing permission can be restored: such a lease is retried until its deadline.
    matches!(kind, StoreErrorKind::Broken | StoreErrorKind::Misconfigured | StoreErrorKind::NotSupported)
}

async fn renew_once(core: &Core) -> Result<(), RenewalFailure> {
    // After a failure, the leases that were not renewed come first: each call may take seconds.
    for at in core.by_end() {
        let (name, lease) = core.lease(at);
        let renew = Renew { lease_id: lease.request.lease_id, token: lease.token, ttl: None };
        let sent = BootInstant::now();
        match core.inner.renew(&name, renew).await {
            Ok(Ok(lease)) => core.renewed(at, lease, sent),
            Ok(Err(now)) => return Err(RenewalFailure::NotHeld { at, name, now: Box::new(now) }),
            Err(error) => return Err(RenewalFailure::Store { name, error }),
        }
    }
    core.set_state(GuardState::Held);
    Ok(())
}
