//! Executions that somebody else runs: taken, kept alive and ended by id and token, from whatever process.

use std::sync::Arc;

use super::desk::Workflows;
use super::execution::Execution;
use super::stale::clear_stale;
use crate::error::{Error, Result};
use crate::model::{
    Acquire, Ask, Asked, Beat, ExecutionId, HeldTask, Lease, LeaseId, LeaseTasks, LockName, LockOp, Metadata,
    Mode, Note, Outcome, Payload, Priority, Progress, Release, Renew, Settle, Settled, Slots, StaleToken,
    Task, TaskState, Token, Ttl, Verdict, WorkerId, WorkerInfo, WorkflowName,
};
use crate::store::clock::{self, new_id};

/// How an execution ended that somebody else ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutionEnd {
    /// It is done, and this came of it.
    Succeeded(Option<Payload>),
    /// It failed, and why.
    Failed(String),
    /// It was stopped, and why if nobody had asked for it.
    Aborted(Option<String>),
}

impl ExecutionEnd {
    fn verdict(self) -> Verdict {
        match self {
            Self::Succeeded(result) => Verdict::Done(result),
            Self::Failed(why) => Verdict::Fail(Note::new(why)),
            Self::Aborted(why) => Verdict::Abort(why.map(Note::new)),
        }
    }

    const fn state(&self) -> TaskState {
        match self {
            Self::Succeeded(_) => TaskState::Succeeded,
            Self::Failed(_) => TaskState::Failed,
            Self::Aborted(_) => TaskState::Aborted,
        }
    }
}

/// How long an execution is put off whose lock somebody else has.
const LOCK_TAKEN: Ttl = Ttl::from_secs(1);

impl Workflows {
    /// Takes the next execution of these workflows, if there is one, for somebody who runs it elsewhere. Without a sign of
    /// life it is over after `ttl`, and has failed.
    pub async fn take(&self, workflows: &[WorkflowName], ttl: Ttl) -> Result<Option<Execution>> {
        let worker = WorkerId::from_uuid(new_id());
        let queues = workflows.iter().map(WorkflowName::queue).collect();
        let ask = LeaseTasks { worker, queues, max: 1, ttl };
        let Some(task) = self.tasks()?.lease(&ask).await?.tasks.pop() else { return Ok(None) };
        if let Some(lock) = &task.lock
            && !self.take_lock(lock, task.id.into(), ttl).await?
        {
            let verdict = Verdict::Snooze(LOCK_TAKEN);
            self.tasks()?.settle(&[Settle { id: task.id, token: task.token, verdict }]).await?;
            return Ok(None);
        }
        Ok(Some(Execution::of(task)))
    }

    async fn take_lock(&self, lock: &LockName, id: ExecutionId, ttl: Ttl) -> Result<bool> {
        let ask = Arc::new(Ask {
            lease_id: LeaseId::from_uuid(clock::new_id()),
            holder: id.holder(),
            mode: Mode::default(),
            slots: Slots::default(),
            priority: Priority::default(),
            ttl,
            metadata: Metadata::default(),
            process: None,
        });
        let acquire = LockOp::Acquire(Acquire { ask, queue: None, steal_after: None });
        for _ in 0..2 {
            if let Outcome::Granted(_) = self.inner.locks().apply(lock, &acquire).await? {
                return Ok(true);
            }
            if !clear_stale(&self.inner, lock).await?.cleared {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// A sign of life: the execution goes on for `ttl` from now. Says who wants it stopped, if somebody does.
    pub async fn heartbeat(
        &self,
        id: ExecutionId,
        token: Token,
        ttl: Ttl,
        progress: Option<Progress>,
    ) -> Result<Option<Asked>> {
        let task = self.task(id).await?;
        check(&task, token)?;
        let worker = WorkerInfo {
            id: task.worker.unwrap_or_else(|| WorkerId::from_uuid(new_id())),
            host: "elsewhere".to_owned(),
            pid: 0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            queues: vec![task.queue.clone()],
            slots: 1,
            busy: 1,
            draining: false,
            every: Ttl::new(ttl.as_duration() / 3).unwrap_or(Ttl::MIN),
        };
        let held = HeldTask { id: task.id, token, progress };
        let beats = self.tasks()?.heartbeat(&worker, &[held], ttl).await?;
        let Some(Beat::Kept(asked)) = beats.into_iter().next() else {
            return Err(self.refused(id, token).await?);
        };
        if let Some(lock) = &task.lock {
            self.keep_lock(lock, id, ttl).await?;
        }
        Ok(asked)
    }

    /// Renews the lock of an execution; takes it anew if it has ended in between and nobody else has it.
    async fn keep_lock(&self, lock: &LockName, id: ExecutionId, ttl: Ttl) -> Result<()> {
        let renewed = match self.lease_of(lock, id).await? {
            Some(lease) => {
                let renew = Renew { lease_id: lease.ask.lease_id, token: lease.token, ttl: Some(ttl) };
                matches!(self.inner.locks().apply(lock, &LockOp::Renew(renew)).await?, Outcome::Renewed(_))
            }
            None => false,
        };
        if renewed || self.take_lock(lock, id, ttl).await? {
            return Ok(());
        }
        Err(Error::Lost { lock: lock.clone(), why: "somebody else has it".to_owned() })
    }

    async fn lease_of(&self, lock: &LockName, id: ExecutionId) -> Result<Option<Lease>> {
        let record = self.inner.locks().get(lock).await?;
        let leases = record.into_iter().flat_map(|record| record.holders);
        Ok(leases.into_iter().find(|lease| lease.ask.holder == id.holder()))
    }

    /// Ends an execution, and frees its lock. From an old token it changes nothing, and says so.
    pub async fn complete(&self, id: ExecutionId, token: Token, end: ExecutionEnd) -> Result<Execution> {
        let task = self.task(id).await?;
        if task.token != token {
            return Err(StaleToken { token, newest: task.token }.into());
        }
        let wanted = end.state();
        let settle = Settle { id: task.id, token, verdict: end.verdict() };
        let settled = self.tasks()?.settle(&[settle]).await?;
        let Some(Settled::Now(state)) = settled.into_iter().next() else {
            return Err(self.refused(id, token).await?);
        };
        if state != wanted {
            return Err(Error::ExecutionFinished { execution: id, state });
        }
        if let Some(lock) = &task.lock
            && let Some(lease) = self.lease_of(lock, id).await?
        {
            let release = Release { lease_id: lease.ask.lease_id, token: lease.token, at_least: None };
            self.inner.locks().apply(lock, &LockOp::Release(release)).await?;
        }
        if let Some(worker) = task.worker {
            self.tasks()?.leave(worker).await?;
        }
        self.get(id).await
    }

    /// Why a token was refused.
    async fn refused(&self, id: ExecutionId, token: Token) -> Result<Error> {
        let task = self.task(id).await?;
        Ok(check(&task, token).err().unwrap_or(Error::UnknownExecution(id)))
    }
}

/// Whether this token still has the execution.
fn check(task: &Task, token: Token) -> Result<()> {
    match task.token {
        newest if newest != token => Err(StaleToken { token, newest }.into()),
        _ if task.state == TaskState::Running => Ok(()),
        _ => Err(Error::ExecutionFinished { execution: task.id.into(), state: task.state }),
    }
}
