//! Executions that run outside this library: taken, renewed and completed by id and token, from any
//! process.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::admin::Workflows;
use super::execution::Execution;
use crate::client::locks::{LockBuilder, clear_stale, in_doubt};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Acquire, Acquired, AttemptResult, ExecutionId, HeartbeatResult, HeldTask, Lease, LeaseId, LeaseTasks,
    LockName, LockRequest, Message, Payload, Progress, Release, Renew, Settle, Settled, StaleToken,
    StopRequest, Task, TaskState, Token, Ttl, WorkerId, WorkerInfo, WorkflowName,
};
use crate::store::BootInstant;
use crate::store::backoff::ExponentialBackoff;
use crate::store::clock::new_id;

/// End of an execution that ran outside this library.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExecutionEnd {
    /// The execution succeeded, with this result.
    Succeeded(Option<Payload>),
    /// The execution failed, for this reason.
    Failed(String),
    /// The execution was stopped; with a reason if no caller had requested the stop.
    Aborted(Option<String>),
}

impl ExecutionEnd {
    fn into_result(self) -> AttemptResult {
        match self {
            Self::Succeeded(result) => AttemptResult::Done(result),
            Self::Failed(reason) => AttemptResult::Fail(Message::new(reason)),
            Self::Aborted(reason) => AttemptResult::Abort(reason.map(Message::new)),
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

/// Divisor of the ttl that limits the wait for the lock of an execution: no process sends
/// heartbeats for the execution while the caller waits.
const WAIT_DIVISOR: u32 = 3;
/// Delays before the return of an execution is tried again.
const RETURN_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(50), Duration::from_secs(1));

impl Workflows {
    /// Takes the next execution of these workflows whose lock is free, for a caller that runs it in
    /// another process. An execution without a heartbeat ends after `ttl`, as failed. If the future is
    /// dropped, an execution that was taken returns to its position.
    pub async fn take(&self, workflows: &[WorkflowName], ttl: Ttl) -> Result<Option<Execution>> {
        self.take_within(workflows, ttl, Duration::ZERO).await
    }

    /// Takes the next execution like [`take`](Self::take). If a holder that is not an execution has
    /// the lock, waits in the queue of that lock for up to `wait`, but for at most a third of
    /// `ttl`. An execution whose lock cannot be acquired returns to its position.
    pub async fn take_within(
        &self,
        workflows: &[WorkflowName],
        ttl: Ttl,
        wait: Duration,
    ) -> Result<Option<Execution>> {
        self.take_as(self.inner.store.new_worker_id(), workflows, ttl, wait).await
    }

    /// Takes the next execution like [`take_within`](Self::take_within), under a worker id that the
    /// caller chooses: a server takes executions for its callers.
    pub async fn take_as(
        &self,
        worker: WorkerId,
        workflows: &[WorkflowName],
        ttl: Ttl,
        wait: Duration,
    ) -> Result<Option<Execution>> {
        let (this, workflows) = (self.clone(), workflows.to_vec());
        let take = move |gone: CancellationToken| async move {
            let request = LeaseTasks { waits_for_locks: true, ..LeaseTasks::new(worker, Vec::new(), 1, ttl) };
            this.take_to_completion(request, &workflows, wait, gone.cancelled_owned()).await
        };
        let this = self.clone();
        let give_back = move |unclaimed: Option<Task>| {
            let background = this.inner.background.clone();
            if let Some(task) = unclaimed {
                background.spawn(async move { this.give_back(&task).await });
            }
        };
        let taken = self.inner.background.run_to_completion(take, give_back).await;
        Ok(taken?.map(Execution::of))
    }

    /// Takes an execution; waits for its lock until the caller is gone.
    async fn take_to_completion(
        &self,
        mut request: LeaseTasks,
        workflows: &[WorkflowName],
        wait: Duration,
        gone: impl Future<Output = ()> + Send,
    ) -> Result<Option<Task>> {
        let ttl = request.ttl;
        for workflow in workflows {
            // Checked before leasing: otherwise an execution would be leased and returned
            // repeatedly, and its events would contain nothing else.
            if !wait.is_zero() || clear_stale(&self.inner, &workflow.lock()).await?.is_free() {
                request.queues.push(workflow.queue());
            }
        }
        if request.queues.is_empty() {
            return Ok(None);
        }
        let Some(task) = self.tasks()?.lease(&request).await?.tasks.pop() else { return Ok(None) };
        let Some(lock) = task.required_lock() else { return Ok(Some(task)) };
        let lock = &lock;
        let wait = wait.min(ttl.as_duration() / WAIT_DIVISOR);
        let acquired = match self.acquire_lock(lock, task.id.into(), ttl).await {
            Ok(false) if !wait.is_zero() => tokio::select! {
                acquired = self.wait_for_lock(lock, task.id.into(), ttl, wait) => acquired,
                () = gone => Err(interrupted()),
            },
            acquired => acquired,
        };
        let started = match acquired {
            // Until here, a server that dies uses no attempt of the execution.
            Ok(true) => self.report_start(&task, ttl).await.map(|()| true),
            not_acquired => not_acquired,
        };
        match started {
            Ok(true) => Ok(Some(task)),
            Ok(false) => self.return_execution(&task).await.map(|()| None),
            Err(error) => {
                // The caller gets no execution: the execution must not stay leased until it fails.
                self.give_back(&task).await;
                Err(error)
            }
        }
    }

    /// Reports that the execution begins: its attempt counts from here on.
    async fn report_start(&self, task: &Task, ttl: Ttl) -> Result<()> {
        let Some(worker) = task.worker.filter(|_| !task.begun) else { return Ok(()) };
        let held = [HeldTask::new(task.id, task.token)];
        let results = self.tasks()?.heartbeat(&WorkerInfo::only(worker), &held, ttl).await?;
        match results.as_slice() {
            [HeartbeatResult::Extended(_)] => Ok(()),
            _ => Err(interrupted()),
        }
    }

    /// Releases the lock of an execution that was taken and has not begun, then returns the execution to its
    /// position. In the other order the next caller that takes the execution could find the lock held by the
    /// execution itself, until that lease expires.
    async fn give_back(&self, task: &Task) {
        if let Some(lock) = &task.required_lock()
            && let Err(error) = self.release_lock(lock, task.id.into()).await
        {
            tracing::warn!(%error, %lock, "failed to release the lock of an execution that was not begun");
        }
        if let Err(error) = self.return_execution(task).await {
            tracing::warn!(%error, task = %task.id, "failed to return an execution to its queue");
        }
    }

    /// Returns an execution to its position.
    async fn return_execution(&self, task: &Task) -> Result<()> {
        let settle = [Settle { id: task.id, token: task.token, result: AttemptResult::Return }];
        let until = BootInstant::now().plus(in_doubt::RETRY_FOR);
        let mut backoff = RETURN_BACKOFF;
        loop {
            let error = match self.tasks()?.settle(&settle).await {
                Ok(settled) if !settled.contains(&Settled::Busy) => return Ok(()),
                Ok(_) => busy(task.id.into()),
                Err(error) => error,
            };
            let left = until.after(BootInstant::now());
            if !error.is_retryable() || left.is_zero() {
                return Err(error);
            }
            let refused_for = error.retry_after().unwrap_or_default();
            tokio::time::sleep(backoff.next_delay().max(refused_for).min(left)).await;
        }
    }

    /// Waits in the queue of the lock, and leaves the lock held for the process that runs the
    /// execution.
    async fn wait_for_lock(
        &self,
        lock: &LockName,
        id: ExecutionId,
        ttl: Ttl,
        wait: Duration,
    ) -> Result<bool> {
        let builder = LockBuilder::new(self.inner.clone(), lock.clone()).ttl(ttl.as_duration());
        let acquired = async {
            let guard = builder.holder(id.holder()).process(None).wait(wait).acquire().await?;
            // Until it is confirmed, a lease that was granted to a waiter lasts only as long as its ticket.
            guard.confirm().await?;
            guard.detach();
            Ok::<_, Error>(true)
        };
        match acquired.await {
            Err(Error::Conflict { .. }) => Ok(false),
            acquired => acquired,
        }
    }

    async fn acquire_lock(&self, lock: &LockName, id: ExecutionId, ttl: Ttl) -> Result<bool> {
        let request = Arc::new(LockRequest::new(LeaseId::from_uuid(new_id()), id.holder(), ttl));
        let acquire = Acquire { request, queue: None, steal_after: None };
        for _ in 0..2 {
            if let Acquired::Granted(_) = self.inner.acquire(lock, acquire.clone()).await? {
                return Ok(true);
            }
            if !clear_stale(&self.inner, lock).await?.cleared {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Sends a heartbeat: extends the execution to `ttl` from now. Returns the request to stop it,
    /// if there is one.
    pub async fn heartbeat(
        &self,
        id: ExecutionId,
        token: Token,
        ttl: Ttl,
        progress: Option<Progress>,
    ) -> Result<Option<StopRequest>> {
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
        let held = HeldTask { progress, ..HeldTask::new(task.id, token) };
        let results = self.tasks()?.heartbeat(&worker, &[held], ttl).await?;
        if results.contains(&HeartbeatResult::Busy) {
            return Err(busy(id));
        }
        let Some(HeartbeatResult::Extended(request)) = results.into_iter().next() else {
            return Err(self.refused_error(id, token).await?);
        };
        if let Some(lock) = &task.required_lock() {
            self.renew_lock(lock, id, ttl).await?;
        }
        Ok(request)
    }

    /// Renews the lock of an execution; acquires it again if its lease has expired and no other
    /// holder has it.
    async fn renew_lock(&self, lock: &LockName, id: ExecutionId, ttl: Ttl) -> Result<()> {
        let renewed = match self.lease_of(lock, id).await? {
            Some(lease) => {
                let renew = Renew { lease_id: lease.request.lease_id, token: lease.token, ttl: Some(ttl) };
                self.inner.renew(lock, renew).await?.is_ok()
            }
            None => false,
        };
        if renewed || self.acquire_lock(lock, id, ttl).await? {
            return Ok(());
        }
        Err(Error::Lost { lock: lock.clone(), reason: "another holder has it".to_owned() })
    }

    async fn lease_of(&self, lock: &LockName, id: ExecutionId) -> Result<Option<Lease>> {
        let record = self.inner.locks().get(lock).await?;
        let leases = record.into_iter().flat_map(|record| record.holders);
        Ok(leases.into_iter().find(|lease| lease.request.holder == id.holder()))
    }

    async fn release_lock(&self, lock: &LockName, id: ExecutionId) -> Result<()> {
        let Some(lease) = self.lease_of(lock, id).await? else { return Ok(()) };
        let release = Release { lease_id: lease.request.lease_id, token: lease.token, at_least: None };
        let until = BootInstant::now().plus(in_doubt::RETRY_FOR);
        // A lease that has ended meanwhile needs no release.
        let _ = in_doubt::release(self.inner.locks(), lock, &release, until).await?;
        Ok(())
    }

    /// Completes an execution, and releases its lock. With a stale token it changes nothing, and
    /// returns an error.
    pub async fn complete(&self, id: ExecutionId, token: Token, end: ExecutionEnd) -> Result<Execution> {
        let task = self.task(id).await?;
        if task.token != token {
            return Err(StaleToken::new(token, task.token).into());
        }
        let wanted = end.state();
        let settle = Settle { id: task.id, token, result: end.into_result() };
        let settled = self.tasks()?.settle(&[settle]).await?;
        let state = match settled.into_iter().next() {
            Some(Settled::Now(state)) => state,
            Some(Settled::Busy) => return Err(busy(id)),
            Some(Settled::Lost) | None => return Err(self.refused_error(id, token).await?),
        };
        // An execution that was requested to stop ends as aborted, also if it failed.
        let is_aborted = wanted == TaskState::Failed && state == TaskState::Aborted;
        if state != wanted && !is_aborted {
            return Err(Error::ExecutionFinished { execution: id, state });
        }
        if let Some(lock) = &task.required_lock() {
            self.release_lock(lock, id).await?;
        }
        if let Some(worker) = task.worker {
            self.tasks()?.deregister(worker).await?;
        }
        self.get(id).await
    }

    async fn refused_error(&self, id: ExecutionId, token: Token) -> Result<Error> {
        let task = self.task(id).await?;
        Ok(check(&task, token).err().unwrap_or(Error::UnknownExecution(id)))
    }
}

fn interrupted() -> Error {
    Error::store(StoreErrorKind::Unavailable, "taking an execution was interrupted", "try again")
}

fn busy(id: ExecutionId) -> Error {
    let message = format!("another transaction holds {id}");
    Error::store(StoreErrorKind::Unavailable, message, "try again")
}

/// Checks that this token still holds the execution.
fn check(task: &Task, token: Token) -> Result<()> {
    match task.token {
        newest if newest != token => Err(StaleToken::new(token, newest).into()),
        _ if task.state == TaskState::Running => Ok(()),
        _ => Err(Error::ExecutionFinished { execution: task.id.into(), state: task.state }),
    }
}
