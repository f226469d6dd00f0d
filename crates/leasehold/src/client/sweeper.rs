//! Clearing away what nobody comes back for, every now and then.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::leasehold::Inner;
use super::workflows::clear_all_stale;

/// Sweeps in the background until dropped. Any number of processes may have one.
#[must_use = "a sweeper that is dropped sweeps no more"]
pub struct Sweeper {
    _stop: DropGuard,
}

/// So many locks at a time.
const BATCH: u32 = 500;

impl Sweeper {
    pub(super) fn start(inner: &Arc<Inner>, every: Duration) -> Self {
        let stop = CancellationToken::new();
        let weak = Arc::downgrade(inner);
        let stopped = stop.clone();
        inner.keeper.spawn_upkeep(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = sweep_on(weak, every) => {}
            }
        });
        Self { _stop: stop.drop_guard() }
    }
}

async fn sweep_on(inner: Weak<Inner>, every: Duration) {
    loop {
        // Spread by chance, so that many hosts that started together do not sweep together.
        tokio::time::sleep(every.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
        let Some(inner) = inner.upgrade() else { return };
        match inner.locks().sweep(BATCH).await {
            Ok(swept) if swept.leases + swept.tickets > 0 => tracing::info!(?swept, "swept"),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a sweep failed; the next one follows"),
        }
        if inner.store.tasks().is_some()
            && let Err(error) = clear_all_stale(&inner).await
        {
            tracing::warn!(%error, "locks of workflows could not be looked at; the next try follows");
        }
    }
}
