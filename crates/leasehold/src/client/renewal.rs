//! One renewal: tries until it succeeds or the lease cannot be counted on any more.

use std::sync::Arc;
use std::time::Duration;

use super::guard::{Core, GuardState};
use super::keeper::Diary;
use crate::error::{Error, Trouble};
use crate::model::{LockName, NotHeld, Outcome, Renew};
use crate::store::Moment;

/// The pause after a try that failed, and the longest it grows to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long after subscribing to notices the leases are looked at.
const SUBSCRIBING: Duration = Duration::from_millis(100);
/// So many answers in a row that no later try can change end the lease at once. One may be a fault of the line.
const FINAL_ANSWERS: u32 = 2;

/// Renews all leases of a guard, and enters it for the next time. One failure never ends it: only success, the
/// store's word that the lease is gone, or the deadline does. The deadline is watched by another thread as well, which
/// does not depend on this task.
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
        let left = core.valid_until().after(Moment::now());
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
                // Before the next entry: one that came due earlier than this would find a renewal under way.
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
                // Said once, not at every try.
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

/// Marks the guard as being renewed until it is dropped, also by a panic.
struct UnderWay(Arc<Core>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.renewal_ended();
    }
}

/// Looks whether the store has every lease as this guard knows it. Others may have changed one before the subscription
/// began.
async fn is_unchanged(core: &Core) -> bool {
    // A subscription takes a moment to reach the engine.
    tokio::time::sleep(SUBSCRIBING).await;
    for at in 0..core.len() {
        let (name, lease) = core.lease(at);
        // If the store does not answer, the renewal finds out.
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

/// Whether no later try can succeed, as when the file of the store was removed.
fn is_final(error: &Error) -> bool {
    let Error::Store { trouble, .. } = error else { return false };
    // A missing permission can be given back: such a lease is tried until its deadline.
    matches!(trouble, Trouble::Broken | Trouble::Misconfigured | Trouble::NotSupported)
}

async fn renew_once(core: &Core) -> Result<(), Failed> {
    for at in 0..core.len() {
        let (name, lease) = core.lease(at);
        let renew = Renew { lease_id: lease.ask.lease_id, token: lease.token, ttl: None };
        let op = core.inner.renewal(renew);
        let sent = Moment::now();
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
