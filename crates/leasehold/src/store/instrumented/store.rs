//! Store that wraps another store, with its locks, tasks and documents.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::Instrument;

use super::counters::{Counters, MetricsSnapshot, Op};
use crate::Result;
use crate::model::{
    Enqueued, Event, EventKind, FinishedFilter, HeartbeatResult, HeldTask, LeaseId, LeaseTasks, Leased,
    LockName, LockOp, LockRecord, NewTask, Outcome, Pause, QueueName, QueueStatus, Recovered, Settle,
    Settled, Swept, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl, WorkerId, WorkerInfo,
    WorkerStatus,
};
use crate::store::{
    BootInstant, Capabilities, Cursor, Document, DocumentStore, HealthCheck, ListEvents, ListLocks,
    ListTasks, LockStore, NewDocument, OnNotice, Page, Peek, PutIf, QueueSubscription, RateLimit, Recipient,
    Store, Subscription, TaskStore, Time, WaiterSubscription,
};

/// Maximum number of possible takeovers that one snapshot looks up.
const LOOK_UPS: usize = 100;
/// Maximum number of events of a lock that are searched for one takeover.
const EVENTS: u32 = 50;

/// Store that counts and times the calls on another store.
pub struct InstrumentedStore {
    store: Arc<dyn Store>,
    counters: Counters,
}

impl InstrumentedStore {
    /// Wraps a store. Only calls through the wrapper are counted.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, counters: Counters::new() }
    }

    /// Returns the wrapped store: direct calls on it are not counted.
    pub fn below(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the current numbers. Looks up in the history how leases ended that other callers may
    /// have taken over, which costs a few reads of the store; leases whose history cannot be read are
    /// omitted.
    pub async fn read(&self) -> MetricsSnapshot {
        for takeover in self.counters.take_possible_takeovers().into_iter().take(LOOK_UPS) {
            let query = ListEvents { lock: Some(takeover.lock), limit: EVENTS, ..ListEvents::default() };
            let Ok(events) = self.store.locks().history(&query).await else { break };
            let how = events.items.iter().find(|event| {
                event.lease_id == takeover.lease_id
                    && (takeover.from..=takeover.until).contains(&event.at)
                    && matches!(event.kind, EventKind::Expired | EventKind::Stolen)
            });
            if let Some(event) = how {
                self.counters.record_takeover(event.kind);
            }
        }
        MetricsSnapshot { rate_limit: self.store.rate_limit(), ..self.counters.read() }
    }

    fn inner_tasks(&self) -> &dyn TaskStore {
        self.store.tasks().expect("only a store that has tasks is asked for them")
    }

    fn inner_docs(&self) -> &dyn DocumentStore {
        self.store.documents().expect("only a store that has documents is asked for them")
    }

    async fn timed<T>(&self, op: Op, call: impl Future<Output = Result<T>>) -> Result<T> {
        let span = tracing::debug_span!("store", op = op.name());
        let began = BootInstant::now();
        let answer = call.instrument(span).await;
        self.counters.record_call(op, began, &answer);
        answer
    }
}

#[async_trait]
impl Store for InstrumentedStore {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn url(&self) -> String {
        self.store.url()
    }

    fn new_worker_id(&self) -> WorkerId {
        self.store.new_worker_id()
    }

    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.store.subscribe(to, on_notice)
    }

    async fn notify(&self, to: &[Recipient]) {
        self.store.notify(to).await;
    }

    fn locks(&self) -> &dyn LockStore {
        self
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        self.store.tasks().map(|_| self as &dyn TaskStore)
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        self.store.documents().map(|_| self as &dyn DocumentStore)
    }

    fn rate_limit(&self) -> Option<RateLimit> {
        self.store.rate_limit()
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        self.store.check_health().await
    }
}

#[async_trait]
impl LockStore for InstrumentedStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let kind = Op::from(op);
        let span = tracing::debug_span!("store", op = kind.name(), lock = %name);
        let began = BootInstant::now();
        let answer = self.store.locks().apply(name, op).instrument(span).await;
        self.counters.record_call(kind, began, &answer);
        self.counters.record_outcome(name, op, began, &answer);
        answer
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.timed(Op::LockGet, self.store.locks().get(name)).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.timed(Op::LockPeek, self.store.locks().peek(name, waiter)).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.timed(Op::LockList, self.store.locks().list(query)).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.timed(Op::LockHistory, self.store.locks().history(query)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.timed(Op::LockNow, self.store.locks().now()).await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.store.locks().subscribe_waiter(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let swept = self.timed(Op::LockSweep, self.store.locks().sweep(limit)).await?;
        self.counters.record_sweep(swept);
        Ok(swept)
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.timed(Op::LockForget, self.store.locks().forget(idle, limit)).await
    }
}

#[async_trait]
impl TaskStore for InstrumentedStore {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.timed(Op::TaskEnqueue, self.inner_tasks().enqueue(new)).await
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let leased = self.timed(Op::TaskLease, self.inner_tasks().lease(request)).await?;
        self.counters.task_leases.add(leased.tasks.len() as u64);
        self.counters.task_leases_expired.add(leased.expired.into());
        Ok(leased)
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let call = self.inner_tasks().heartbeat(worker, held, ttl);
        let beats = self.timed(Op::TaskHeartbeat, call).await?;
        let lost = beats.iter().filter(|beat| **beat == HeartbeatResult::Lost).count();
        self.counters.task_lease_conflicts.add(lost as u64);
        Ok(beats)
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.timed(Op::TaskLeave, self.inner_tasks().deregister(worker)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let settled = self.timed(Op::TaskSettle, self.inner_tasks().settle(settle)).await?;
        let lost = settled.iter().filter(|settled| **settled == Settled::Lost).count();
        self.counters.task_lease_conflicts.add(lost as u64);
        Ok(settled)
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let answer = self.timed(Op::TaskChange, self.inner_tasks().change(id, op)).await?;
        let conflict = matches!(answer, Some((TaskAnswer::VersionConflict(_), _)));
        self.counters.task_version_conflicts.add(conflict.into());
        Ok(answer)
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let recovered = self.timed(Op::TaskRecover, self.inner_tasks().recover(limit)).await?;
        self.counters.task_leases_expired.add(recovered.expired().into());
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.timed(Op::TaskGet, self.inner_tasks().get(id)).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.timed(Op::TaskGet, self.inner_tasks().get_by_key(queue, key)).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.timed(Op::TaskList, self.inner_tasks().list(query)).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.timed(Op::TaskQueues, self.inner_tasks().queues()).await
    }

    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        self.timed(Op::TaskQueues, self.inner_tasks().queue(queue)).await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        self.timed(Op::TaskPause, self.inner_tasks().pause(queue, pause)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.timed(Op::TaskWorkers, self.inner_tasks().workers()).await
    }

    async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        self.timed(Op::TaskArchive, self.inner_tasks().archive(which)).await
    }

    async fn purge(&self, which: &FinishedFilter) -> Result<u64> {
        self.timed(Op::TaskPurge, self.inner_tasks().purge(which)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.timed(Op::TaskNow, self.inner_tasks().now()).await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.inner_tasks().subscribe_queues(queues)
    }
}

#[async_trait]
impl DocumentStore for InstrumentedStore {
    fn capabilities(&self) -> Capabilities {
        self.inner_docs().capabilities()
    }

    fn url(&self) -> String {
        self.inner_docs().url()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        self.timed(Op::DocGet, self.inner_docs().get(key)).await
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Document>>> {
        self.timed(Op::DocGet, self.inner_docs().get_all(keys)).await
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let put = self.timed(Op::DocPut, self.inner_docs().put_if(key, expected, draft)).await?;
        self.counters.doc_version_conflicts.add(matches!(put, PutIf::Conflict(_)).into());
        Ok(put)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        self.timed(Op::DocList, self.inner_docs().list(prefix, after, limit)).await
    }

    async fn time(&self) -> Result<Time> {
        self.timed(Op::DocTime, self.inner_docs().time()).await
    }

    fn reads_may_be_old(&self) -> bool {
        self.inner_docs().reads_may_be_old()
    }

    fn call_timeout(&self) -> Duration {
        self.inner_docs().call_timeout()
    }

    fn batch(&self) -> u64 {
        self.inner_docs().batch()
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        self.inner_docs().check_health().await
    }
}
