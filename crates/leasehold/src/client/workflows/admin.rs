//! Administration of workflows and executions: queries, aborting, unlocking.

use std::collections::HashSet;
use std::sync::Arc;

use super::execution::{Execution, WorkflowLock, WorkflowStatus};
use crate::client::context::{Inner, parsed};
use crate::client::locks::{LockStatus, in_doubt};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    AttemptResult, Cancel, ExecutionId, ForceRelease, Holder, LockOp, LockRecord, Message, Reason, Settle,
    Settled, Task, TaskAnswer, TaskKey, TaskOp, TaskState, Ttl, WorkflowName,
};
use crate::store::{ListTasks, TaskStore, notify_worker};

/// Size of inputs and results at which no more executions with the same key are read.
const MAX_BYTES_WITH_KEY: usize = 8 << 20;

/// Administrative API for workflows and executions.
#[derive(Clone)]
pub struct Workflows {
    pub(super) inner: Arc<Inner>,
}

impl Workflows {
    pub(in crate::client) fn new(inner: Arc<Inner>) -> Result<Self> {
        inner.tasks()?;
        Ok(Self { inner })
    }

    pub(super) fn tasks(&self) -> Result<&dyn TaskStore> {
        self.inner.tasks()
    }

    /// Lists the workflows that were ever started, by name.
    pub async fn list(&self) -> Result<Vec<WorkflowStatus>> {
        let queues = self.tasks()?.queues().await?.into_iter();
        let status = queues.filter_map(|status| {
            let workflow = WorkflowName::of_queue(&status.queue)?;
            Some(WorkflowStatus { workflow, counts: status.counts, paused: status.paused })
        });
        Ok(status.collect())
    }

    /// Returns one execution.
    pub async fn get(&self, id: ExecutionId) -> Result<Execution> {
        self.task(id).await.map(Execution::of)
    }

    pub(super) async fn task(&self, id: ExecutionId) -> Result<Task> {
        let task = self.tasks()?.get(id.task()).await?;
        task.filter(|task| ExecutionId::of_task(task).is_some()).ok_or(Error::UnknownExecution(id))
    }

    /// Returns the executions that were started with this key, the newest first: of one workflow,
    /// or of all. Earlier executions are found through the execution that uses the key now, up to
    /// the first one that was purged, and at most `limit` per workflow. Fewer are returned if their inputs
    /// and results have more than 8 MiB.
    pub async fn with_key(
        &self,
        workflow: Option<&WorkflowName>,
        key: &TaskKey,
        limit: usize,
    ) -> Result<Vec<Execution>> {
        let workflows = match workflow {
            Some(workflow) => vec![workflow.clone()],
            None => self.list().await?.into_iter().map(|status| status.workflow).collect(),
        };
        let (mut found, mut seen, mut bytes) = (Vec::<Execution>::new(), HashSet::new(), 0);
        for workflow in workflows {
            if bytes >= MAX_BYTES_WITH_KEY {
                break;
            }
            let mut next = self.tasks()?.get_by_key(&workflow.queue(), key).await?;
            let mut left = limit;
            // Executions may name each other in a circle.
            while let Some(task) =
                next.filter(|task| left > 0 && bytes < MAX_BYTES_WITH_KEY && seen.insert(task.id))
            {
                left -= 1;
                bytes += task.bytes() + task.result.as_ref().map_or(0, |result| result.as_str().len());
                let execution = Execution { key: Some(key.clone()), ..Execution::of(task) };
                next = match execution.retry_of {
                    // Any caller that may add tasks can name any task in the payload.
                    Some(earlier) => {
                        let earlier = self.tasks()?.get(earlier.task()).await?;
                        earlier.filter(|task| task.queue == workflow.queue())
                    }
                    None => None,
                };
                found.push(execution);
            }
        }
        found.sort_by_key(|execution| std::cmp::Reverse((execution.created_at, execution.id)));
        Ok(found)
    }

    /// Stops an execution: immediately if it waits. If it runs, its worker receives a request to
    /// stop it, and holds the lock until it has stopped.
    pub async fn abort(&self, id: ExecutionId, by: Holder, reason: Option<Reason>) -> Result<Execution> {
        self.task(id).await?;
        let task = self.change(id, TaskOp::Cancel(Cancel { by, reason })).await?;
        notify_worker(&*self.inner.store, &task).await;
        Ok(Execution::of(task))
    }

    /// Reports that the caller that started an execution to [run it
    /// itself](crate::StartBuilder::runner_ttl) still waits for it. Without another such call within
    /// `ttl`, the execution fails if it has not begun by then.
    pub async fn renew_runner(&self, id: ExecutionId, ttl: Ttl) -> Result<Execution> {
        self.task(id).await?;
        self.change(id, TaskOp::RenewRunner(ttl)).await.map(Execution::of)
    }

    async fn change(&self, id: ExecutionId, op: TaskOp) -> Result<Task> {
        match self.tasks()?.change(id.task(), &op).await?.ok_or(Error::UnknownExecution(id))? {
            (TaskAnswer::Refused(state), _) => Err(Error::ExecutionFinished { execution: id, state }),
            (_, task) => Ok(task),
        }
    }

    /// Returns the lock of a workflow.
    pub async fn lock(
        &self,
        workflow: impl TryInto<WorkflowName, Error: Into<Error>>,
    ) -> Result<WorkflowLock> {
        self.lock_of(&parsed(workflow)?).await
    }

    async fn lock_of(&self, workflow: &WorkflowName) -> Result<WorkflowLock> {
        let (name, tasks) = (workflow.lock(), self.tasks()?);
        let record = self.inner.locks().get(&name).await?.unwrap_or_else(|| LockRecord::new(name.clone()));
        let lock = LockStatus::of(&record, self.inner.locks().now().await?);
        let idle = match lock.holder.as_ref().and_then(ExecutionId::of_holder) {
            Some(id) => tasks.get(id.task()).await?.is_none_or(|task| task.state != TaskState::Running),
            None => false,
        };
        let head = self.head(workflow).await?;
        let queued = self.list().await?.into_iter().find(|status| status.workflow == *workflow);
        let queued = queued.map_or(0, |status| status.counts.get(TaskState::Blocked));
        Ok(WorkflowLock::of(workflow.clone(), lock, head.as_ref(), idle, queued))
    }

    /// Returns the execution that runs or is next to run.
    async fn head(&self, workflow: &WorkflowName) -> Result<Option<Task>> {
        for state in [TaskState::Running, TaskState::Pending] {
            let query = ListTasks {
                queue: Some(workflow.queue()),
                lock: Some(workflow.lock()),
                state: Some(state),
                limit: 1,
                ..ListTasks::default()
            };
            if let Some(head) = self.tasks()?.list(&query).await?.items.pop() {
                return Ok(Some(head));
            }
        }
        Ok(None)
    }

    /// Takes a workflow's lock from its holder, and ends the execution that runs or is next to run
    /// as aborted. The worker of the execution may still be running it: its token is stale from now
    /// on, and the worker learns so with its next heartbeat. Returns the state of the lock
    /// afterwards: the next execution may hold it.
    pub async fn unlock(
        &self,
        workflow: impl TryInto<WorkflowName, Error: Into<Error>>,
        by: Holder,
        reason: Reason,
    ) -> Result<WorkflowLock> {
        let workflow = parsed(workflow)?;
        if let Some(head) = self.head(&workflow).await? {
            let cancel = Cancel { by: by.clone(), reason: Some(reason.clone()) };
            self.tasks()?.change(head.id, &TaskOp::Cancel(cancel)).await?;
            if head.state == TaskState::Running {
                let reason = Message::new(format!("unlocked: {reason} (by {by})"));
                let settle =
                    Settle { id: head.id, token: head.token, result: AttemptResult::Abort(Some(reason)) };
                if self.tasks()?.settle(&[settle]).await?.contains(&Settled::Busy) {
                    let message = format!("another transaction holds {}", ExecutionId::from(head.id));
                    return Err(Error::store(StoreErrorKind::Unavailable, message, "try again"));
                }
                if let Some(worker) = head.worker {
                    self.inner.store.notify(&[worker.into()]).await;
                }
            }
        }
        let name = workflow.lock();
        if let Some(record) = self.inner.locks().get(&name).await? {
            let now = self.inner.locks().now().await?;
            for lease in record.live(now) {
                let force = ForceRelease { token: lease.token, by: by.clone(), reason: reason.clone() };
                let forced = in_doubt::force_release(self.inner.locks(), &name, force.clone()).await;
                in_doubt::notify_holder(&self.inner, &name, &LockOp::ForceRelease(force), &forced).await;
                // A lease that has ended meanwhile is as good as one that was ended.
                let _ = forced?;
            }
        }
        self.lock_of(&workflow).await
    }
}
