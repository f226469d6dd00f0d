//! Maintenance that any worker performs for the whole store: ends leases of dead workers, makes due
//! tasks available, adds the tasks of schedule ticks, purges old tasks.

use std::sync::Arc;
use std::time::Duration;

use super::retention::{self, Forgetting};
use crate::client::leasehold::Inner;
use crate::client::schedules::{KnownTicks, tick};
use crate::client::workflows::clear_all_stale;
use crate::error::Result;
use crate::model::{QueueName, Retention};
use crate::store::BootInstant;

/// Maximum number of tasks in one batch.
const BATCH: u32 = 1000;
/// Interval of the purge of old tasks.
const FORGET_EVERY: Duration = Duration::from_mins(1);

/// Maximum time until a schedule that another process set or changed is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Settings of the maintenance loop.
pub(super) struct Upkeep {
    pub(super) inner: Arc<Inner>,
    /// Interval of the search for expired leases.
    pub(super) every: Duration,
    /// Whether the store can purge finished tasks.
    pub(super) forgets: bool,
    /// Retention to set for these queues before the first purge.
    pub(super) retention: Option<(Vec<QueueName>, Retention)>,
    /// Whether the loop also clears stale locks of workflows; set if the worker handles workflows.
    pub(super) workflows: bool,
}

/// Maintains the store until the future is dropped.
pub(super) async fn look_after(upkeep: Upkeep) {
    let Upkeep { inner, every, mut forgets, mut retention, workflows } = upkeep;
    let mut forget = BootInstant::now().plus(FORGET_EVERY.mul_f64(fastrand::f64()));
    let mut forgetting = Forgetting::default();
    loop {
        if let Some((queues, keep)) = &retention {
            match set_retention(&inner, queues, *keep).await {
                Ok(()) => retention = None,
                Err(error) if error.is_not_permitted() => {
                    tracing::warn!(%error, "this process may not say how long finished tasks are kept");
                    retention = None;
                }
                Err(error) => {
                    inner.contact.failed("the retention could not be set; the next try follows", &error);
                }
            }
        }
        // Random delay, so that workers that started together do not run this together.
        tokio::time::sleep(every.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        if let Err(error) = recover(&inner).await {
            inner.contact.failed("leases that ran out could not be looked for; the next try follows", &error);
        }
        if workflows && let Err(error) = clear_all_stale(&inner).await {
            inner.contact.failed("locks of workflows could not be looked at; the next try follows", &error);
        }
        // Not before the retention of this worker is stored, where all processes read it.
        if forgets && retention.is_none() && BootInstant::now() >= forget {
            forget = BootInstant::now().plus(FORGET_EVERY);
            if let Err(error) = forgetting.pass(&inner).await {
                if error.is_not_permitted() {
                    tracing::debug!(%error, "this process may not forget tasks; others do");
                    forgets = false;
                } else {
                    inner.contact.failed("old tasks could not be forgotten; the next try follows", &error);
                }
            }
        }
    }
}

/// Adds the tasks of schedule ticks until the future is dropped.
pub(super) async fn tick_on(inner: Arc<Inner>) {
    let mut known = KnownTicks::default();
    loop {
        let next = match tick(&inner, &mut known).await {
            Ok(next) => next.unwrap_or(LOOK_EVERY),
            Err(error) if error.is_not_permitted() => {
                tracing::debug!(%error, "this process may not let schedules tick; the server does");
                return;
            }
            Err(error) => {
                inner.contact.failed("the schedules could not be looked at; the next try follows", &error);
                Duration::from_secs(1)
            }
        };
        // A tick is handled on time, and the first process to handle it spares the others the work.
        // Queries that only detect changes drift apart, so that processes that started together do
        // not query together forever.
        let late = Duration::from_millis(fastrand::u64(0..20));
        let look = LOOK_EVERY.mul_f64(0.7 + 0.3 * fastrand::f64());
        tokio::time::sleep(next.min(look) + late).await;
    }
}

async fn set_retention(inner: &Inner, queues: &[QueueName], keep: Retention) -> Result<()> {
    for queue in queues {
        if retention::set(inner, Some(queue), Some(keep)).await? {
            tracing::info!(%queue, ?keep, "set how long finished tasks are kept");
        }
    }
    Ok(())
}

async fn recover(inner: &Inner) -> Result<()> {
    loop {
        let recovered = inner.tasks()?.recover(BATCH).await?;
        if recovered.expired() > 0 {
            tracing::warn!(?recovered, "recovered tasks of workers that are gone");
        }
        if recovered.expired() < BATCH {
            return Ok(());
        }
    }
}
