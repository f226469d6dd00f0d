//! Background maintenance of a store: removes expired leases, tickets and idle locks, returns tasks
//! of dead workers, makes due tasks available, adds the tasks of schedule ticks, purges old tasks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::context::Inner;
use super::locks::clear_all_stale;
#[cfg(feature = "schedules")]
use super::schedules::run_scheduler;
use super::tasks::{RetentionPurge, store_retention};
use crate::error::Result;
use crate::model::{QueueName, Retention, Ttl};
use crate::store::BootInstant;
use crate::store::backoff::jittered;

const LOCK_BATCH: u32 = 500;
/// Minimum interval between searches for idle locks, which are not urgent.
const FORGET_LOCKS_EVERY: Duration = Duration::from_mins(1);
/// Default time without a grant after which maintenance removes a lock.
pub const FORGET_LOCKS_AFTER: Ttl = Ttl::from_secs(24 * 3600);
const TASK_BATCH: u32 = 1000;
const PURGE_EVERY: Duration = Duration::from_mins(1);
/// Delay after which a part of the maintenance is tried again that this process was not permitted to do. It
/// may be permitted later: a proxy can refuse a request that the store permits.
const REFUSED_FOR: Duration = Duration::from_mins(10);

/// Background maintenance that runs until dropped. Any number of processes may run it.
#[must_use = "maintenance stops when it is dropped"]
pub struct Maintenance {
    _stop: DropGuard,
}

impl Maintenance {
    /// Starts maintenance of locks. Without `forget_after`, it removes no idle locks.
    pub(super) fn of_locks(inner: &Arc<Inner>, every: Duration, forget_after: Option<Ttl>) -> Self {
        Self::start(inner, run_lock_maintenance(Arc::downgrade(inner), every, forget_after))
    }

    /// Starts the maintenance of tasks that every worker performs, for a process without a worker of
    /// this library, such as a server whose workers run in other programs.
    pub(super) fn of_tasks(inner: &Arc<Inner>, every: Duration) -> Result<Self> {
        inner.tasks()?;
        let capabilities = inner.store.capabilities().tasks;
        let (purges, workflows) = (capabilities.purge, capabilities.locks);
        let tasks = TaskMaintenance { inner: inner.clone(), every, purges, retention: None, workflows };
        let work = run_task_maintenance(tasks);
        #[cfg(feature = "schedules")]
        let work = {
            let ticks = run_scheduler(inner.clone());
            async { _ = tokio::join!(work, ticks) }
        };
        Ok(Self::start(inner, work))
    }

    fn start(inner: &Arc<Inner>, work: impl Future<Output = ()> + Send + 'static) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        inner.background.spawn_maintenance(async move {
            stopped.run_until_cancelled(work).await;
        });
        Self { _stop: stop.drop_guard() }
    }
}

async fn run_lock_maintenance(inner: Weak<Inner>, every: Duration, forget_after: Option<Ttl>) {
    let mut forget_next = BootInstant::now();
    loop {
        // Random jitter, so that hosts that started together do not sweep together.
        tokio::time::sleep(jittered(every)).await;
        let Some(inner) = inner.upgrade() else { return };
        match inner.locks().sweep(LOCK_BATCH).await {
            Ok(swept) if swept.leases + swept.tickets > 0 => {
                tracing::info!(?swept, "removed expired leases and tickets");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "failed to remove expired leases; retrying later"),
        }
        if let Some(idle) = forget_after
            && forget_next <= BootInstant::now()
        {
            forget_next = BootInstant::now().plus(FORGET_LOCKS_EVERY);
            match inner.locks().forget(idle, LOCK_BATCH).await {
                Ok(0) => {}
                // There may be many more: some applications use one lock per order.
                Ok(locks) => {
                    forget_next = BootInstant::now();
                    tracing::info!(locks, "removed idle locks");
                }
                Err(error) => tracing::warn!(%error, "failed to remove idle locks; retrying later"),
            }
        }
        if inner.store.tasks().is_some()
            && let Err(error) = clear_all_stale(&inner).await
        {
            tracing::warn!(%error, "failed to clear stale locks of workflows; retrying later");
        }
    }
}

pub(super) struct TaskMaintenance {
    pub(super) inner: Arc<Inner>,
    /// Interval of the search for expired leases.
    pub(super) every: Duration,
    /// Whether the store can purge finished tasks.
    pub(super) purges: bool,
    /// Retention to set for these queues before the first purge.
    pub(super) retention: Option<(Vec<QueueName>, Retention)>,
    /// Whether stale locks of workflows are cleared too; set if the worker handles workflows.
    pub(super) workflows: bool,
}

/// Maintains the tasks of the store until the future is dropped.
pub(super) async fn run_task_maintenance(maintenance: TaskMaintenance) {
    let TaskMaintenance { inner, every, purges, mut retention, workflows } = maintenance;
    let mut purge_next = BootInstant::now().plus(PURGE_EVERY.mul_f64(fastrand::f64()));
    let mut purge = RetentionPurge::default();
    let [mut clear_next, mut retain_next] = [BootInstant::now(); 2];
    loop {
        if let Some((queues, keep)) = &retention
            && BootInstant::now() >= retain_next
        {
            match set_retention(&inner, queues, *keep).await {
                Ok(()) => retention = None,
                Err(error) if error.is_not_permitted() => {
                    tracing::warn!(%error, "this process is not permitted to set the retention of finished tasks, and purges none");
                    retain_next = BootInstant::now().plus(REFUSED_FOR);
                }
                Err(error) => {
                    inner.availability.record_failure("failed to set the retention; retrying later", &error);
                }
            }
        }
        // Random delay, so that workers that started together do not run this together.
        tokio::time::sleep(every.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        if let Err(error) = recover(&inner).await {
            inner.availability.record_failure("failed to search for expired leases; retrying later", &error);
        }
        if workflows
            && BootInstant::now() >= clear_next
            && let Err(error) = clear_all_stale(&inner).await
        {
            if error.is_not_permitted() {
                tracing::debug!(%error, "this process is not permitted to clear stale locks; other processes do");
                clear_next = BootInstant::now().plus(REFUSED_FOR);
            } else {
                let message = "failed to clear stale locks of workflows; retrying later";
                inner.availability.record_failure(message, &error);
            }
        }
        // Not before the retention of this worker is stored, where all processes read it.
        if purges && retention.is_none() && BootInstant::now() >= purge_next {
            purge_next = BootInstant::now().plus(PURGE_EVERY);
            if let Err(error) = purge.run(&inner).await {
                if error.is_not_permitted() {
                    tracing::debug!(%error, "this process is not permitted to purge tasks; other processes do");
                    purge_next = BootInstant::now().plus(REFUSED_FOR);
                } else {
                    inner.availability.record_failure("failed to purge old tasks; retrying later", &error);
                }
            }
        }
    }
}

async fn set_retention(inner: &Inner, queues: &[QueueName], keep: Retention) -> Result<()> {
    for queue in queues {
        if store_retention(inner, Some(queue), Some(keep)).await? {
            tracing::info!(%queue, ?keep, "set the retention of finished tasks");
        }
    }
    Ok(())
}

async fn recover(inner: &Inner) -> Result<()> {
    loop {
        let recovered = inner.tasks()?.recover(TASK_BATCH).await?;
        if recovered.expired() > 0 {
            tracing::warn!(?recovered, "recovered tasks of dead workers");
        }
        if recovered.expired() < TASK_BATCH {
            return Ok(());
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::Leasehold;
    use crate::model::{ExecutionId, LockOp, TaskId};
    use crate::store::memory::MemoryStore;
    use crate::testing::{FaultyStore, Simulation};

    /// In virtual time.
    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "a simulation starts at an instant of its runtime")]
    async fn a_refused_part_is_tried_again_after_ten_minutes() {
        let _simulation = Simulation::start(1, tokio::time::Instant::now(), None);
        let store = FaultyStore::new(Arc::new(MemoryStore::new()));
        store.forbid_force();
        let leasehold = Leasehold::with_store(store.clone()).unwrap();
        let stale = ExecutionId::from(TaskId::from_uuid(Uuid::from_u128(1)));
        let lock = leasehold.lock("workflow/deploy").holder(stale.holder()).ttl(Duration::from_hours(1));
        let guard = lock.acquire().await.unwrap();
        let maintenance = leasehold.maintain_tasks(Duration::from_secs(2)).unwrap();
        let attempts = || store.sent().iter().filter(|op| matches!(op, LockOp::ForceRelease(_))).count();
        for (minutes, expected) in [(9, 1), (2, 2), (10, 3)] {
            tokio::time::sleep(Duration::from_mins(minutes)).await;
            assert_eq!(attempts(), expected);
        }
        drop((maintenance, guard));
    }
}
