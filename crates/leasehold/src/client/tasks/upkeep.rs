//! What any worker does for all: ends leases of workers that are gone, puts in line what is due, makes tasks of the ticks
//! of schedules, forgets what is old.

use std::sync::Arc;
use std::time::Duration;

use crate::client::leasehold::Inner;
use crate::client::schedules::{KnownTicks, tick};
use crate::client::workflows::clear_all_stale;
use crate::error::Result;
use crate::model::{Finished, QueueName, TaskState, WorkflowName};
use crate::store::Moment;

/// So many tasks at a time.
const BATCH: u32 = 1000;
/// Old tasks are looked for this often.
const FORGET_EVERY: Duration = Duration::from_mins(1);

/// Schedules that were set or changed elsewhere are seen within this time.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Tasks are forgotten so long after they have finished, if nobody says otherwise.
pub(super) const KEEP: Duration = Duration::from_hours(7 * 24);

/// What became of executions is known for at least so long: an event may come again late.
const KEEP_EXECUTIONS: Duration = Duration::from_hours(30 * 24);

/// What a worker does for all.
pub(super) struct Upkeep {
    pub(super) inner: Arc<Inner>,
    /// Leases that ran out are looked for this often.
    pub(super) every: Duration,
    /// Tasks are forgotten so long after they have finished.
    pub(super) keep: Option<Duration>,
    /// The worker handles workflows: it looks after their locks, too.
    pub(super) workflows: bool,
}

/// Looks after the store until it is dropped.
pub(super) async fn look_after(upkeep: Upkeep) {
    let Upkeep { inner, every, keep, workflows } = upkeep;
    let mut forget = Moment::now().plus(FORGET_EVERY.mul_f64(fastrand::f64()));
    loop {
        // Spread by chance, so that many workers that started together do not do it together.
        tokio::time::sleep(every.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        if let Err(error) = recover(&inner).await {
            inner.contact.failed("leases that ran out could not be looked for; the next try follows", &error);
        }
        if workflows && let Err(error) = clear_all_stale(&inner).await {
            inner.contact.failed("locks of workflows could not be looked at; the next try follows", &error);
        }
        if let Some(keep) = keep
            && Moment::now() >= forget
        {
            forget = Moment::now().plus(FORGET_EVERY);
            if let Err(error) = purge(&inner, keep).await {
                inner.contact.failed("old tasks could not be forgotten; the next try follows", &error);
            }
        }
    }
}

/// Makes tasks of the ticks of schedules until it is dropped.
pub(super) async fn tick_on(inner: Arc<Inner>) {
    let mut known = KnownTicks::default();
    loop {
        let next = match tick(&inner, &mut known).await {
            Ok(next) => next.unwrap_or(LOOK_EVERY),
            Err(error) => {
                inner.contact.failed("the schedules could not be looked at; the next try follows", &error);
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
    let now = tasks.now().await?;
    let queues = tasks.queues().await?;
    let over = queues.iter().filter(|status| {
        TaskState::ALL.iter().any(|state| state.is_terminal() && status.counts.get(*state) > 0)
    });
    let is_workflow = |queue: &QueueName| WorkflowName::of_queue(queue).is_some();
    let (executions, others): (Vec<_>, Vec<_>) =
        over.map(|status| status.queue.clone()).partition(is_workflow);
    // Mostly there are no workflows, and all queues are one.
    let others: Vec<Option<QueueName>> =
        if executions.is_empty() { vec![None] } else { others.into_iter().map(Some).collect() };
    let executions = executions.into_iter().map(|queue| (Some(queue), keep.max(KEEP_EXECUTIONS)));
    for (queue, keep) in others.into_iter().map(|queue| (queue, keep)).chain(executions) {
        let which = Finished { queue, state: None, before: now.minus(keep), limit: BATCH };
        while tasks.purge(&which).await? == u64::from(BATCH) {}
    }
    Ok(())
}
