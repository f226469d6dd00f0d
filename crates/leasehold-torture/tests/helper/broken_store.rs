//! Store that sometimes breaks one of its promises.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use leasehold::Result;
use leasehold::model::{
    Enqueued, Event, FinishedFilter, ForceRelease, HeartbeatResult, HeldTask, Holder, Lease, LeaseId,
    LeaseTasks, Leased, LockName, LockOp, LockRecord, NewTask, Outcome, Pause, QueueName, QueueStatus,
    Reason, Recovered, Settle, Settled, Swept, Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState,
    Timestamp, Ttl, WorkerId, WorkerInfo, WorkerStatus,
};
use leasehold::store::{
    Capabilities, DocumentStore, ListEvents, ListLocks, ListTasks, LockStore, Page, Peek, QueueSubscription,
    Store, TaskStore, WaiterSubscription,
};

/// What the store ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ignores {
    /// An acquire ignores the holder.
    Holder,
    /// A release ignores the lease and its token, and ends any lease.
    Token,
    /// A renewal ignores that the lease has ended.
    End,
    /// A lease of tasks ignores the worker that runs one of them.
    Owner,
    /// An acknowledged task is not stored.
    Task,
    /// A task is added although its key belongs to another one.
    Key,
}

pub(crate) struct BrokenStore {
    store: Arc<dyn Store>,
    ignores: Ignores,
    /// One operation in this number is wrong; for [`Ignores::Holder`] one call of the store.
    one_in: u32,
    /// Number of calls since the last acquire that ignored a holder.
    calls: AtomicU32,
    /// Leases that were granted by this store.
    leases: Mutex<HashMap<LeaseId, Lease>>,
}

impl BrokenStore {
    pub(crate) fn new(store: Arc<dyn Store>, ignores: Ignores, one_in: u32) -> Self {
        Self { store, ignores, one_in, calls: AtomicU32::new(0), leases: Mutex::default() }
    }

    fn is_wrong(&self, ignores: Ignores) -> bool {
        self.ignores == ignores && fastrand::u32(..self.one_in) == 0
    }

    fn locks_below(&self) -> &dyn LockStore {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.store.locks()
    }

    fn inner_tasks(&self) -> &dyn TaskStore {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.store.tasks().expect("the store below has tasks")
    }

    /// Ends the leases of a lock, except one; returns whether there was one to end.
    async fn end_leases(&self, name: &LockName, except: Option<LeaseId>) -> Result<bool> {
        let locks = self.store.locks();
        let mut has_ended = false;
        for lease in locks.get(name).await?.into_iter().flat_map(|record| record.holders) {
            if except != Some(lease.request.lease_id) {
                let (by, reason) = (Holder::new("broken")?, Reason::new("a condition that is ignored")?);
                let force = LockOp::ForceRelease(ForceRelease { token: lease.token, by, reason });
                has_ended |= matches!(locks.apply(name, &force).await?, Outcome::Forced(_));
            }
        }
        Ok(has_ended)
    }

    /// Returns a lease that has ended as if it had been renewed.
    async fn revived(&self, lease_id: LeaseId) -> Result<Option<Outcome>> {
        let known = self.leases.lock().unwrap_or_else(PoisonError::into_inner).get(&lease_id).cloned();
        let now = self.store.locks().now().await?;
        Ok(known.map(|lease| {
            Outcome::Renewed(Lease { renewed_at: now, expires_at: now.plus(lease.request.ttl), ..lease })
        }))
    }
}

impl Store for BrokenStore {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn url(&self) -> String {
        self.store.url()
    }

    fn locks(&self) -> &dyn LockStore {
        self
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        self.store.tasks().map(|_| self as &dyn TaskStore)
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        self.store.documents()
    }
}

#[async_trait]
impl LockStore for BrokenStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        match op {
            LockOp::Acquire(acquire)
                if self.ignores == Ignores::Holder && self.calls.load(Ordering::Relaxed) >= self.one_in =>
            {
                let has_ended = self.end_leases(name, Some(acquire.request.lease_id)).await?;
                if has_ended {
                    self.calls.store(0, Ordering::Relaxed);
                }
            }
            LockOp::Release(release) if self.is_wrong(Ignores::Token) => {
                self.end_leases(name, Some(release.lease_id)).await?;
            }
            _ => {}
        }
        let outcome = self.locks_below().apply(name, op).await?;
        match (&outcome, op) {
            (Outcome::Granted(lease) | Outcome::Renewed(lease), _) => {
                let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
                leases.insert(lease.request.lease_id, lease.clone());
            }
            (Outcome::NotHeld(_), LockOp::Renew(renew) | LockOp::RenewLogged(renew))
                if self.is_wrong(Ignores::End) =>
            {
                return Ok(self.revived(renew.lease_id).await?.unwrap_or(outcome));
            }
            _ => {}
        }
        Ok(outcome)
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.locks_below().get(name).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.locks_below().peek(name, waiter).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.locks_below().list(query).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.locks_below().history(query).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.locks_below().now().await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.store.locks().subscribe_waiter(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.locks_below().sweep(limit).await
    }
}

#[async_trait]
impl TaskStore for BrokenStore {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        if self.is_wrong(Ignores::Task) {
            return Ok(new.iter().map(|task| Enqueued::Added(task.id)).collect());
        }
        if self.is_wrong(Ignores::Key) {
            let without_key = |task: &NewTask| NewTask { key: None, ..task.clone() };
            return self.inner_tasks().enqueue(&new.iter().map(without_key).collect::<Vec<_>>()).await;
        }
        self.inner_tasks().enqueue(new).await
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let mut leased = self.inner_tasks().lease(request).await?;
        if self.is_wrong(Ignores::Owner) {
            let query = ListTasks::default().state(Some(TaskState::Running));
            for task in self.inner_tasks().list(&query).await?.items {
                let is_of_another = task.worker.is_some_and(|worker| worker != request.worker);
                if is_of_another && request.queues.contains(&task.queue) {
                    leased.tasks.push(task);
                    break;
                }
            }
        }
        Ok(leased)
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        self.inner_tasks().heartbeat(worker, held, ttl).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.inner_tasks().deregister(worker).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        self.inner_tasks().settle(settle).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        self.inner_tasks().change(id, op).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.inner_tasks().recover(limit).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.inner_tasks().get(id).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.inner_tasks().get_by_key(queue, key).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.inner_tasks().list(query).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.inner_tasks().queues().await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        self.inner_tasks().pause(queue, pause).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.inner_tasks().workers().await
    }

    async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        self.inner_tasks().archive(which).await
    }

    async fn purge(&self, which: &FinishedFilter) -> Result<u64> {
        self.inner_tasks().purge(which).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.inner_tasks().now().await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.inner_tasks().subscribe_queues(queues)
    }
}
