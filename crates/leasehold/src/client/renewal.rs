//! One renewal: tries until it succeeds or the lease cannot be counted on any more.

use std::sync::Arc;
use std::time::Duration;

use super::guard::{Core, GuardState};
use super::keeper::Diary;
use crate::error::Error;
use crate::model::{LockOp, Outcome, Renew};
use crate::store::Moment;

/// The pause after a try that failed, and the longest it grows to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Renews all leases of a guard, and enters it for the next time. One failure never ends it: only success, the
/// store's word that the lease is gone, or the deadline does.
pub(super) async fn renew(core: Arc<Core>, diary: Arc<Diary>) {
    let mut pause = PAUSE.0;
    loop {
        let left = core.valid_until().after(Moment::now());
        if core.is_over() {
            return;
        }
        if left == Duration::ZERO {
            return core.lose("it could not be renewed in time");
        }
        match tokio::time::timeout(left, renew_once(&core)).await {
            Ok(Ok(())) => return core.enter(&diary, Moment::now()),
            Ok(Err(Error::NotHeld { now, .. })) => {
                let taken = now.holders.first().map(|held| format!("{} has the lock now", held.holder));
                return core.lose(&taken.unwrap_or_else(|| "the store no longer knows it".to_owned()));
            }
            Ok(Err(error)) => {
                tracing::warn!(locks = %core.names(), %error, "a renewal failed; trying again");
                core.set_state(GuardState::Unsure);
            }
            Err(_) => {}
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn renew_once(core: &Core) -> Result<(), Error> {
    for at in 0..core.len() {
        let (name, lease) = core.lease(at);
        let op = LockOp::Renew(Renew { lease_id: lease.ask.lease_id, token: lease.token, ttl: None });
        let sent = Moment::now();
        match core.locks().apply(&name, &op).await? {
            Outcome::Renewed(lease) => core.renewed(at, lease, sent),
            other => return Err(super::leasehold::unexpected(&name, other)),
        }
    }
    core.set_state(GuardState::Held);
    Ok(())
}
