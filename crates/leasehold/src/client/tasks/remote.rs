//! Lease operations without a worker of this library: for workers in other programs that call
//! through a server.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Tasks;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    AttemptResult, HeartbeatResult, HeldTask, LeaseTasks, Leased, Settle, Settled, Task, Ttl,
    ValidationError, WorkerId, WorkerInfo,
};
use crate::store::BootInstant;

/// Minimum delay between two queries of a queue whose next task is due.
const SHORTEST_NAP: Duration = Duration::from_millis(1);

impl Tasks {
    /// Leases the next tasks for a worker. If there are none, waits for up to `wait`. Holds no
    /// lease while it waits: if the future is dropped, no task is lost, and tasks that were leased
    /// just then are given back.
    pub async fn lease(&self, ask: &LeaseTasks, wait: Duration) -> Result<Vec<Task>> {
        self.must_last(ask.ttl)?;
        let end = BootInstant::now().plus(wait);
        // Subscribe before the first query, so that no notification is missed.
        let mut arrivals = self.store()?.arrivals(&ask.queues);
        loop {
            let Leased { tasks, next_due, .. } = self.lease_whole(ask).await?;
            let left = end.after(BootInstant::now());
            if !tasks.is_empty() || left.is_zero() {
                return Ok(tasks);
            }
            let due = next_due.map(|(due, now)| due.since(now).max(SHORTEST_NAP));
            arrivals.next(Some(due.map_or(left, |due| due.min(left)))).await;
        }
    }

    /// Runs one lease call to completion: if the caller is dropped in the middle, the leased tasks
    /// are given back to other workers.
    async fn lease_whole(&self, ask: &LeaseTasks) -> Result<Leased> {
        let (answer, answered) = oneshot::channel();
        let (desk, ask) = (self.clone(), ask.clone());
        tokio::spawn(async move {
            let leased = match desk.store() {
                Ok(tasks) => tasks.lease(&ask).await,
                Err(error) => Err(error),
            };
            if let Err(Ok(unwanted)) = answer.send(leased) {
                desk.give_back(&unwanted.tasks).await;
            }
        });
        answered.await.unwrap_or_else(|_| {
            Err(Error::store(StoreErrorKind::Unavailable, "asking for tasks ended early", "try again"))
        })
    }

    async fn give_back(&self, tasks: &[Task]) {
        let back = |task: &Task| Settle { id: task.id, token: task.token, verdict: AttemptResult::Return };
        let back: Vec<Settle> = tasks.iter().map(back).collect();
        if !back.is_empty()
            && let Err(error) = self.settle(&back).await
        {
            tracing::warn!(%error, "tasks that nobody waited for any more come back when their leases run out");
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
        self.must_last(ttl)?;
        no_task_twice(held.iter().map(|held| held.id))?;
        self.store()?.heartbeat(worker, held, ttl).await
    }

    /// Settles attempts; the results have the order of `settle`.
    pub async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        no_task_twice(settle.iter().map(|settle| settle.id))?;
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
    pub async fn leave(&self, worker: WorkerId) -> Result<()> {
        self.store()?.leave(worker).await
    }

    fn must_last(&self, ttl: Ttl) -> Result<()> {
        let least = self.least_ttl();
        if ttl < least {
            let short = format!("a ttl of {ttl} is too short for this store; {least} is the least");
            return Err(ValidationError(short).into());
        }
        Ok(())
    }
}

fn no_task_twice<T: Ord + std::fmt::Display>(ids: impl Iterator<Item = T>) -> Result<(), ValidationError> {
    let mut seen = BTreeSet::new();
    for id in ids {
        if seen.contains(&id) {
            return Err(ValidationError(format!("task {id} is there twice")));
        }
        seen.insert(id);
    }
    Ok(())
}
