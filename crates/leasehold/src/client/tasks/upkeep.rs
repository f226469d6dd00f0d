//! What any worker does for all: ends leases of workers that are gone, puts in line what is due, makes tasks of the ticks
//! of schedules, forgets what is old.

use std::sync::Arc;
use std::time::Duration;

use crate::client::leasehold::Inner;
use crate::client::schedules::tick;
use crate::error::Result;
use crate::model::Finished;
use crate::store::Moment;

/// So many tasks at a time.
const BATCH: u32 = 1000;
/// Old tasks are looked for this often.
const FORGET_EVERY: Duration = Duration::from_mins(1);

/// Schedules that were set or changed elsewhere are seen within this time.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Looks after the store until it is dropped.
pub(super) async fn look_after(inner: Arc<Inner>, every: Duration, keep: Option<Duration>) {
    let mut forget = Moment::now().plus(FORGET_EVERY.mul_f64(fastrand::f64()));
    loop {
        // Spread by chance, so that many workers that started together do not do it together.
        tokio::time::sleep(every.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        if let Err(error) = recover(&inner).await {
            tracing::warn!(%error, "leases that ran out could not be looked for; the next try follows");
        }
        if let Some(keep) = keep
            && Moment::now() >= forget
        {
            forget = Moment::now().plus(FORGET_EVERY);
            if let Err(error) = purge(&inner, keep).await {
                tracing::warn!(%error, "old tasks could not be forgotten; the next try follows");
            }
        }
    }
}

/// Makes tasks of the ticks of schedules until it is dropped.
pub(super) async fn tick_on(inner: Arc<Inner>) {
    loop {
        let next = match tick(&inner).await {
            Ok(next) => next.unwrap_or(LOOK_EVERY),
            Err(error) => {
                tracing::warn!(%error, "the schedules could not be looked at; the next try follows");
                Duration::from_secs(1)
            }
        };
        // Spread by chance: whoever is first spares the others the work.
        let late = Duration::from_millis(fastrand::u64(0..20));
        tokio::time::sleep(next.min(LOOK_EVERY) + late).await;
    }
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

async fn purge(inner: &Inner, keep: Duration) -> Result<()> {
    let tasks = inner.tasks()?;
    let before = tasks.now().await?.minus(keep);
    let which = Finished { queue: None, state: None, before, limit: BATCH };
    while tasks.purge(&which).await? == u64::from(BATCH) {}
    Ok(())
}
