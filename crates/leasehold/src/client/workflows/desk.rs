//! Looking at workflows and executions, stopping them, unlocking a workflow by hand.

use std::sync::Arc;

use super::execution::{Execution, WorkflowLock, WorkflowStatus};
use crate::client::in_doubt;
use crate::client::leasehold::Inner;
use crate::client::status::LockStatus;
use crate::error::{Error, Result, Trouble};
use crate::model::{
    Cancel, ExecutionId, ForceRelease, Holder, LockOp, LockRecord, Note, Reason, Settle, Settled, Task,
    TaskAnswer, TaskKey, TaskOp, TaskState, Ttl, Verdict, WorkflowName,
};
use crate::store::{Cursor, ListTasks, Page, TaskStore, notify_holders, notify_worker};

/// The workflows of a store, for whoever looks after them.
#[derive(Clone)]
pub struct Workflows {
    pub(super) inner: Arc<Inner>,
}

/// Which executions to list.
#[derive(Debug, Clone, Default)]
pub struct ListExecutions {
    /// Of this workflow; else of all.
    pub workflow: Option<WorkflowName>,
    /// In this state.
    pub state: Option<TaskState>,
    /// After this place of an earlier page.
    pub after: Option<Cursor>,
    /// At most so many; 0 means 100.
    pub limit: u32,
}

impl Workflows {
    pub(in crate::client) fn new(inner: Arc<Inner>) -> Result<Self> {
        inner.tasks()?;
        Ok(Self { inner })
    }

    pub(super) fn tasks(&self) -> Result<&dyn TaskStore> {
        self.inner.tasks()
    }

    /// The workflows that were ever started, by name.
    pub async fn list(&self) -> Result<Vec<WorkflowStatus>> {
        let queues = self.tasks()?.queues().await?.into_iter();
        let status = queues.filter_map(|status| {
            let workflow = WorkflowName::of_queue(&status.queue)?;
            Some(WorkflowStatus { workflow, counts: status.counts, paused: status.paused })
        });
        Ok(status.collect())
    }

    /// One execution.
    pub async fn get(&self, id: ExecutionId) -> Result<Execution> {
        self.task(id).await.map(Execution::of)
    }

    pub(super) async fn task(&self, id: ExecutionId) -> Result<Task> {
        let task = self.tasks()?.get(id.task()).await?;
        task.filter(|task| ExecutionId::of_task(task).is_some()).ok_or(Error::UnknownExecution(id))
    }

    /// Executions, the newest first, a page at a time. A page may have fewer than asked for although there are more.
    pub async fn executions(&self, ask: &ListExecutions) -> Result<Page<Execution>> {
        let mut list = ListTasks {
            queue: ask.workflow.as_ref().map(WorkflowName::queue),
            state: ask.state,
            after: ask.after.clone(),
            limit: ask.limit,
            ..ListTasks::default()
        };
        loop {
            let page = self.tasks()?.list(&list).await?;
            let executions = page.items.into_iter().filter(|task| ExecutionId::of_task(task).is_some());
            let items: Vec<Execution> = executions.map(Execution::of).collect();
            if page.next.is_none() || !items.is_empty() {
                return Ok(Page { items, next: page.next });
            }
            list.after = page.next;
        }
    }

    /// Returns the executions that were started with this key, the newest first: of one workflow, or of all. Earlier ones
    /// are found through the execution that uses the key now, up to the first that is forgotten, `most` of each workflow.
    pub async fn with_key(
        &self,
        workflow: Option<&WorkflowName>,
        key: &TaskKey,
        most: usize,
    ) -> Result<Vec<Execution>> {
        let workflows = match workflow {
            Some(workflow) => vec![workflow.clone()],
            None => self.list().await?.into_iter().map(|status| status.workflow).collect(),
        };
        let mut found: Vec<Execution> = Vec::new();
        for workflow in workflows {
            let mut next = self.tasks()?.keyed(&workflow.queue(), key).await?;
            let mut left = most;
            while let Some(task) = next.filter(|_| left > 0) {
                left -= 1;
                let execution = Execution { key: Some(key.clone()), ..Execution::of(task) };
                next = match execution.retry_of {
                    Some(earlier) => self.tasks()?.get(earlier.task()).await?,
                    None => None,
                };
                found.push(execution);
            }
        }
        found.sort_by_key(|execution| std::cmp::Reverse((execution.created_at, execution.id)));
        Ok(found)
    }

    /// Stops an execution: at once if it waits; if it runs, its worker is asked to, and the lock is held until it has.
    pub async fn abort(&self, id: ExecutionId, by: Holder, reason: Option<Reason>) -> Result<Execution> {
        self.task(id).await?;
        let op = TaskOp::Cancel(Cancel { by, reason });
        let changed = self.tasks()?.change(id.task(), &op).await?;
        match changed.ok_or(Error::UnknownExecution(id))? {
            (TaskAnswer::Refused(state), _) => Err(Error::ExecutionFinished { execution: id, state }),
            (_, task) => {
                notify_worker(&*self.inner.store, &task).await;
                Ok(Execution::of(task))
            }
        }
    }

    /// Whoever started an execution to [run it itself](crate::StartBuilder::wanted) still waits for it: unless this is said again
    /// within `ttl`, the execution has failed if it has not begun by then.
    pub async fn want(&self, id: ExecutionId, ttl: Ttl) -> Result<Execution> {
        let changed = self.tasks()?.change(id.task(), &TaskOp::Want(ttl)).await?;
        match changed.ok_or(Error::UnknownExecution(id))? {
            (TaskAnswer::Refused(state), _) => Err(Error::ExecutionFinished { execution: id, state }),
            (_, task) => Ok(Execution::of(task)),
        }
    }

    /// The lock of a workflow.
    pub async fn lock(&self, workflow: &WorkflowName) -> Result<WorkflowLock> {
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

    /// The execution that runs or is next to run.
    async fn head(&self, workflow: &WorkflowName) -> Result<Option<Task>> {
        for state in [TaskState::Running, TaskState::Pending] {
            let ask = ListTasks {
                queue: Some(workflow.queue()),
                lock: Some(workflow.lock()),
                state: Some(state),
                limit: 1,
                ..ListTasks::default()
            };
            if let Some(head) = self.tasks()?.list(&ask).await?.items.pop() {
                return Ok(Some(head));
            }
        }
        Ok(None)
    }

    /// Takes a workflow's lock from whoever has it, and ends the execution that runs or is next to run as aborted. Its worker
    /// may still be at work: its token is old from now on, and it learns so with its next sign of life. Says how the lock is
    /// then: the next execution may have it.
    pub async fn unlock(&self, workflow: &WorkflowName, by: Holder, reason: Reason) -> Result<WorkflowLock> {
        if let Some(head) = self.head(workflow).await? {
            let cancel = Cancel { by: by.clone(), reason: Some(reason.clone()) };
            self.tasks()?.change(head.id, &TaskOp::Cancel(cancel)).await?;
            if head.state == TaskState::Running {
                let why = Note::new(format!("unlocked: {reason} (by {by})"));
                let settle = Settle { id: head.id, token: head.token, verdict: Verdict::Abort(Some(why)) };
                if self.tasks()?.settle(&[settle]).await?.contains(&Settled::Busy) {
                    let message = format!("another transaction holds {}", ExecutionId::from(head.id));
                    return Err(Error::store(Trouble::Unavailable, message, "try again"));
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
                let forced =
                    in_doubt::settle(self.inner.locks(), &name, &LockOp::ForceRelease(force)).await?;
                notify_holders(&*self.inner.store, &name, &forced).await;
            }
        }
        self.lock(workflow).await
    }
}
