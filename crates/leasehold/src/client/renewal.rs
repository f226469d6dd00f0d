//! Renewal of a guard: retries until it succeeds or the lease has expired.

use std::sync::Arc;
use std::time::Duration;

use super::guard::{Core, GuardState};
use super::keeper::Diary;
use crate::error::{Error, StoreErrorKind};
use crate::model::{LockName, NotHeld, Outcome, Renew};
use crate::store::BootInstant;

/// Initial and maximum pause after a failed attempt.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Delay between the subscription to notifications and the check of the leases.
const SUBSCRIBING: Duration = Duration::from_millis(100);
/// Number of consecutive permanent errors after which the lease is lost at once. A single one may
/// be a transmission error.
const FINAL_ANSWERS: u32 = 2;

/// Renews all leases of a guard and schedules its next renewal. A single failure never ends the
/// loop: only success, the store's report that the lease has ended, repeated permanent errors, or
/// the deadline does. Another thread, which does not depend on this task, watches the deadline as well.
pub(super) async fn renew(core: Arc<Core>, diary: Arc<Diary>) {
    let under_way = UnderWay(core.clone());
    if let Some(left) = core.subscribe()
        && tokio::time::timeout(left, is_unchanged(&core)).await == Ok(true)
    {
        drop(under_way);
        return core.enter_again(&diary);
    }
    let (mut pause, mut final_answers, mut failed) = (PAUSE.0, 0, false);
    loop {
        let left = core.valid_until().after(BootInstant::now());
        if core.is_over() {
            return;
        }
        if left == Duration::ZERO {
            return core.lose_at_deadline();
        }
        core.answer_notices();
        match tokio::time::timeout(left, renew_once(&core)).await {
            Ok(Ok(())) => {
                if failed {
                    tracing::warn!(locks = %core.names(), "a renewal succeeded again");
                }
                // Before the next timer is set: a timer that fired before this drop would find a
                // renewal in progress.
                drop(under_way);
                return core.enter_again(&diary);
            }
            Ok(Err(Failed::NotHeld { at, name, now })) => {
                let taken = now.holders.first().map(|held| format!("{} has the lock now", held.holder));
                let why = taken.unwrap_or_else(|| "the store no longer knows it".to_owned());
                return core.lose(name, why, Some(at));
            }
            Ok(Err(Failed::Store { name, error })) => {
                final_answers = if is_final(&error) { final_answers + 1 } else { 0 };
                if final_answers == FINAL_ANSWERS {
                    return core.lose(name, format!("it cannot be renewed: {error}"), None);
                }
                // Warn once, not at every attempt.
                if failed {
                    tracing::debug!(locks = %core.names(), %error, "a renewal failed again");
                } else {
                    tracing::warn!(locks = %core.names(), %error, "a renewal failed; trying again");
                }
                failed = true;
                core.set_state(GuardState::Unsure);
            }
            Err(_) => {}
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Marks the guard as being renewed until dropped, also on a panic.
struct UnderWay(Arc<Core>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.renewal_ended();
    }
}

/// Returns whether the store has every lease in the state that this guard knows. Other callers may
/// have changed one before the subscription began.
async fn is_unchanged(core: &Core) -> bool {
    // A subscription takes some time to reach the engine.
    tokio::time::sleep(SUBSCRIBING).await;
    for at in 0..core.len() {
        let (name, lease) = core.lease(at);
        // If the store does not answer, the renewal will detect it.
        if let Ok(peek) = core.locks().peek(&name, &lease.ask.lease_id).await {
            let found = peek.lease.filter(|found| found.token == lease.token);
            if found.is_none_or(|found| (found.status, found.asked) != (lease.status, lease.asked)) {
                return false;
            }
        }
    }
    true
}

enum Failed {
    NotHeld { at: usize, name: LockName, now: Box<NotHeld> },
    Store { name: LockName, error: Error },
}

/// Returns whether no later attempt can succeed, for example because the file of the store was removed.
fn is_final(error: &Error) -> bool {
    let Error::Store { trouble, .. } = error else { return false };
    // A missing permission can be restored: such a lease is retried until its deadline.
    matches!(trouble, StoreErrorKind::Broken | StoreErrorKind::Misconfigured | StoreErrorKind::NotSupported)
}

async fn renew_once(core: &Core) -> Result<(), Failed> {
    for at in 0..core.len() {
        let (name, lease) = core.lease(at);
        let renew = Renew { lease_id: lease.ask.lease_id, token: lease.token, ttl: None };
        let op = core.inner.renewal(renew);
        let sent = BootInstant::now();
        match core.locks().apply(&name, &op).await {
            Ok(Outcome::Renewed(lease)) => core.renewed(at, lease, sent),
            Ok(Outcome::NotHeld(now)) => return Err(Failed::NotHeld { at, name, now: Box::new(now) }),
            Ok(other) => {
                let error = super::leasehold::unexpected(&name, other);
                return Err(Failed::Store { name, error });
            }
            Err(error) => return Err(Failed::Store { name, error }),
        }
    }
    core.set_state(GuardState::Held);
    Ok(())
}
