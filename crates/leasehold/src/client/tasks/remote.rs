//! Leases without a worker of this library: for those who work elsewhere, and ask over a server.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Tasks;
use crate::error::{Error, Result, Trouble};
use crate::model::{
    Beat, HeldTask, Invalid, LeaseTasks, Leased, Settle, Settled, Task, Ttl, Verdict, WorkerId, WorkerInfo,
};
use crate::store::Moment;

/// Between two looks at a queue whose next task is due there is at least this.
const SHORTEST_NAP: Duration = Duration::from_millis(1);

impl Tasks {
    /// Gives a worker what is next; if there is nothing, waits for so long until there is. Takes nothing while it waits:
    /// if it is dropped, nothing is lost, and what came just then is given back.
    pub async fn lease(&self, ask: &LeaseTasks, wait: Duration) -> Result<Vec<Task>> {
        self.must_last(ask.ttl)?;
        let end = Moment::now().plus(wait);
        // From before the first look, so that no wake-up is missed.
        let mut arrivals = self.store()?.arrivals(&ask.queues);
        loop {
            let Leased { tasks, next_due, .. } = self.lease_whole(ask).await?;
            let left = end.after(Moment::now());
            if !tasks.is_empty() || left.is_zero() {
                return Ok(tasks);
            }
            let due = next_due.map(|(due, now)| due.since(now).max(SHORTEST_NAP));
            arrivals.next(Some(due.map_or(left, |due| due.min(left)))).await;
        }
    }

    /// One lease to its end: a caller that goes away in the middle does not keep tasks from others.
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
            Err(Error::store(Trouble::Unavailable, "asking for tasks ended early", "try again"))
        })
    }

    async fn give_back(&self, tasks: &[Task]) {
        let back = |task: &Task| Settle { id: task.id, token: task.token, verdict: Verdict::Return };
        let back: Vec<Settle> = tasks.iter().map(back).collect();
        if !back.is_empty()
            && let Err(error) = self.settle(&back).await
        {
            tracing::warn!(%error, "tasks that nobody waited for any more come back when their leases run out");
        }
    }

    /// Takes the signs of life of a worker for all its leases at once; the answers are in their order.
    pub async fn heartbeat(&self, worker: &WorkerInfo, held: &[HeldTask], ttl: Ttl) -> Result<Vec<Beat>> {
        self.must_last(ttl)?;
        no_task_twice(held.iter().map(|held| held.id))?;
        self.store()?.heartbeat(worker, held, ttl).await
    }

    /// Ends attempts; the answers are in their order.
    pub async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        no_task_twice(settle.iter().map(|settle| settle.id))?;
        let settled = self.store()?.settle(settle).await?;
        if settled.contains(&Settled::Busy) {
            let message = "another transaction holds a task or the head of its lock";
            return Err(Error::store(Trouble::Unavailable, message, "send the same settlements again"));
        }
        Ok(settled)
    }

    /// A worker says good-bye: it is no longer listed. What it still has comes back when its leases run out.
    pub async fn leave(&self, worker: WorkerId) -> Result<()> {
        self.store()?.leave(worker).await
    }

    fn must_last(&self, ttl: Ttl) -> Result<()> {
        let least = self.least_ttl();
        if ttl < least {
            let short = format!("a ttl of {ttl} is too short for this store; {least} is the least");
            return Err(Invalid(short).into());
        }
        Ok(())
    }
}

fn no_task_twice<T: Ord + std::fmt::Display>(ids: impl Iterator<Item = T>) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    for id in ids {
        if seen.contains(&id) {
            return Err(Invalid(format!("task {id} is there twice")));
        }
        seen.insert(id);
    }
    Ok(())
}
