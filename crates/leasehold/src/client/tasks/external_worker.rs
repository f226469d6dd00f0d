//! Lease operations without a worker of this library: for workers in other programs that call
//! through a server.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Tasks;
use crate::client::locks::check_ttl;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    AttemptResult, HeartbeatResult, HeldTask, LeaseTasks, Leased, Settle, Settled, Task, Ttl,
    ValidationError, ValueKind, WorkerId, WorkerInfo,
};
use crate::store::BootInstant;

/// Minimum delay between two queries of a queue whose next task is due.
const MIN_POLL_DELAY: Duration = Duration::from_millis(1);

impl Tasks {
    /// Leases the next tasks for a worker. If there are none, waits for up to `wait`. Holds no
    /// lease while it waits: if the future is dropped, no task is lost, and tasks that were leased
    /// just then are returned.
    pub async fn lease(&self, request: &LeaseTasks, wait: Duration) -> Result<Vec<Task>> {
        check_ttl(&self.inner, request.ttl)?;
        let end = BootInstant::now().plus(wait);
        // Subscribe before the first query, so that no notification is missed.
        let mut subscription = self.store()?.subscribe_queues(&request.queues);
        loop {
            let Leased { tasks, next_due, .. } = self.lease_to_completion(request).await?;
            let left = end.after(BootInstant::now());
            if !tasks.is_empty() || left.is_zero() {
                return Ok(tasks);
            }
            let due = next_due.map(|(due, now)| due.since(now).max(MIN_POLL_DELAY));
            subscription.next(Some(due.map_or(left, |due| due.min(left)))).await;
        }
    }

    /// Runs one lease call to completion: if the caller is dropped in the middle, the leased tasks
    /// are returned to their queues.
    async fn lease_to_completion(&self, request: &LeaseTasks) -> Result<Leased> {
        let (answer, answered) = oneshot::channel();
        let (this, request) = (self.clone(), request.clone());
        tokio::spawn(async move {
            let leased = match this.store() {
                Ok(tasks) => tasks.lease(&request).await,
                Err(error) => Err(error),
            };
            if let Err(Ok(unwanted)) = answer.send(leased) {
                this.return_tasks(&unwanted.tasks).await;
            }
        });
        answered.await.unwrap_or_else(|_| {
            Err(Error::store(StoreErrorKind::Unavailable, "leasing tasks was interrupted", "try again"))
        })
    }

    async fn return_tasks(&self, tasks: &[Task]) {
        let back = |task: &Task| Settle { id: task.id, token: task.token, verdict: AttemptResult::Return };
        let back: Vec<Settle> = tasks.iter().map(back).collect();
        if !back.is_empty()
            && let Err(error) = self.settle(&back).await
        {
            tracing::warn!(%error, "failed to return tasks whose caller is gone; they become available when their leases expire");
        }
    }

    /// Applies the heartbeats of a worker for all its leases in one call; the results have the
    /// order of `held`.
    pub async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        check_ttl(&self.inner, ttl)?;
        check_unique(held.iter().map(|held| held.id))?;
        self.store()?.heartbeat(worker, held, ttl).await
    }

    /// Settles attempts; the results have the order of `settle`.
    pub async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        check_unique(settle.iter().map(|settle| settle.id))?;
        let settled = self.store()?.settle(settle).await?;
        if settled.contains(&Settled::Busy) {
            let message = "another transaction holds a task or the head of its lock";
            return Err(Error::store(
                StoreErrorKind::Unavailable,
                message,
                "send the same settlements again",
            ));
        }
        Ok(settled)
    }

    /// Deregisters a worker: it is no longer listed. Tasks that it still holds become available
    /// when their leases expire.
    pub async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.store()?.deregister(worker).await
    }
}

fn check_unique<T: Ord + std::fmt::Display>(ids: impl Iterator<Item = T>) -> Result<(), ValidationError> {
    let mut seen = BTreeSet::new();
    for id in ids {
        if let Some(id) = seen.replace(id) {
            return Err(ValidationError::new(ValueKind::Id, format!("task {id} is listed twice")));
        }
    }
    Ok(())
}
