//! Lease operations without a worker of this library: for workers in other programs that call
//! through a server.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::client::locks::check_ttl;
use crate::client::tasks::Tasks;
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
        let (tasks, request) = (self.clone(), request.clone());
        let lease = move |_| async move { tasks.store()?.lease(&request).await };
        let this = self.clone();
        let give_back = move |unwanted: Leased| {
            let background = this.inner.background.clone();
            background.spawn(async move { this.return_tasks(&unwanted.tasks).await });
        };
        self.inner.background.run_to_completion(lease, give_back).await
    }

    async fn return_tasks(&self, tasks: &[Task]) {
        let back = |task: &Task| Settle { id: task.id, token: task.token, result: AttemptResult::Return };
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
        let tasks = self.store()?;
        if held.len() <= 1 || !self.inner.capabilities.tasks.single_heartbeats {
            let results = tasks.heartbeat(worker, held, ttl).await?;
            let is_busy = results.contains(&HeartbeatResult::Busy);
            return if is_busy { Err(busy("heartbeats")) } else { Ok(results) };
        }
        // One call for each task, so that an error concerns that task alone.
        let (mut results, mut accepted, mut refusal, mut failure) = (Vec::new(), false, None, None);
        for held in held.chunks(1) {
            match tasks.heartbeat(worker, held, ttl).await {
                Ok(answers) => {
                    accepted = true;
                    results.extend(answers);
                }
                Err(error) if error.is_retryable() => failure = Some(error),
                Err(error) => {
                    tracing::warn!(%error, task = %held[0].id, "the store refused the heartbeat of a task");
                    results.push(HeartbeatResult::Lost);
                    refusal = Some(error);
                }
            }
        }
        match failure.or_else(|| refusal.filter(|_| !accepted)) {
            Some(error) => Err(error),
            None => Ok(results),
        }
    }

    /// Settles attempts; the results have the order of `settle`.
    pub async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        check_unique(settle.iter().map(|settle| settle.id))?;
        let settled = self.store()?.settle(settle).await?;
        if settled.contains(&Settled::Busy) { Err(busy("settlements")) } else { Ok(settled) }
    }

    /// Deregisters a worker: it is no longer listed. Tasks that it still holds become available
    /// when their leases expire.
    pub async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.store()?.deregister(worker).await
    }
}

/// Returns the error for requests that the engine could not decide because another transaction holds rows of
/// theirs.
pub(super) fn busy(requests: &str) -> Error {
    let message = "another transaction holds a task or the head of its lock";
    Error::store(StoreErrorKind::Unavailable, message, format!("send the same {requests} again"))
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
