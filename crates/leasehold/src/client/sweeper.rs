//! Periodic background sweep of expired leases, tickets and unused locks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::leasehold::Inner;
use super::workflows::clear_all_stale;
use crate::model::Ttl;
use crate::store::BootInstant;

/// Background sweep that runs until dropped. Any number of processes may run one.
#[must_use = "a sweeper that is dropped sweeps no more"]
pub struct Sweeper {
    _stop: DropGuard,
}

/// Maximum number of locks per sweep.
const BATCH: u32 = 500;
/// Minimum interval between searches for idle locks, which are not urgent.
const FORGET_EVERY: Duration = Duration::from_mins(1);

/// Default time without a grant after which a sweeper removes a lock.
pub const FORGET_AFTER: Ttl = Ttl::from_secs(24 * 3600);

impl Sweeper {
    /// Starts a sweeper. Without `forget_after`, it removes no locks.
    pub(super) fn start(inner: &Arc<Inner>, every: Duration, forget_after: Option<Ttl>) -> Self {
        let stop = CancellationToken::new();
        let weak = Arc::downgrade(inner);
        let stopped = stop.clone();
        inner.keeper.spawn_upkeep(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = sweep_on(weak, every, forget_after) => {}
            }
        });
        Self { _stop: stop.drop_guard() }
    }
}

async fn sweep_on(inner: Weak<Inner>, every: Duration, forget_after: Option<Ttl>) {
    let mut forget_next = BootInstant::now();
    loop {
        // Random jitter, so that hosts that started together do not sweep together.
        tokio::time::sleep(every.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
        let Some(inner) = inner.upgrade() else { return };
        match inner.locks().sweep(BATCH).await {
            Ok(swept) if swept.leases + swept.tickets > 0 => tracing::info!(?swept, "swept"),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a sweep failed; the next one follows"),
        }
        if let Some(idle) = forget_after
            && forget_next <= BootInstant::now()
        {
            forget_next = BootInstant::now().plus(FORGET_EVERY);
            match inner.locks().forget(idle, BATCH).await {
                Ok(0) => {}
                // There may be many more: some applications use one lock per order.
                Ok(locks) => {
                    forget_next = BootInstant::now();
                    tracing::info!(locks, "forgot idle locks");
                }
                Err(error) => {
                    tracing::warn!(%error, "idle locks could not be forgotten; the next try follows");
                }
            }
        }
        if inner.store.tasks().is_some()
            && let Err(error) = clear_all_stale(&inner).await
        {
            tracing::warn!(%error, "locks of workflows could not be looked at; the next try follows");
        }
    }
}
