//! Store with injected faults, through the public trait: lost requests, lost answers, delays,
//! missing answers.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Enqueued, Event, FinishedFilter, HeartbeatResult, HeldTask, LeaseId, LeaseTasks, Leased, LockName,
    LockOp, LockRecord, NewTask, Outcome, Pause, QueueName, QueueStatus, Recovered, Settle, Settled, Swept,
    Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState, Timestamp, Ttl, ValidationError, WorkerId,
    WorkerInfo, WorkerStatus,
};
use crate::store::{
    BootInstant, Capabilities, DocumentStore, ListEvents, ListLocks, ListTasks, LockStore, Page, Peek,
    QueueSubscription, RefusedUntil, Store, TaskStore, WaiterSubscription,
};

/// Fault of one call of [`LockStore::apply`], or of a [`TaskStore`]. A lasting [`Fault::Hang`] also concerns
/// [`LockStore::peek`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call succeeds.
    None,
    /// The request never reaches the store.
    LoseRequest,
    /// The call takes effect, but the answer is lost.
    LoseAnswer,
    /// The answer is delayed.
    Delay(Duration),
    /// The call takes effect, but never returns.
    Hang,
    /// The request never reaches the store, and fails with an error that is not retryable.
    Refuse,
    /// The request never reaches the store, which refuses every request for this time.
    RefuseFor(Duration),
    /// The code of the store panics.
    Panic,
    /// The call succeeds, but blocks the caller's thread for this time, as a slow disk does.
    Block(Duration),
}

/// Store with faults: the planned ones first, one per call, then the lasting one.
pub struct FaultyStore {
    store: Arc<dyn Store>,
    planned: Mutex<VecDeque<Fault>>,
    lasting: Mutex<Fault>,
    log: Mutex<Vec<LockOp>>,
    most_settled: Mutex<Option<usize>>,
    /// Tasks whose settlements, or heartbeats, are refused.
    refused_tasks: Mutex<BTreeSet<TaskId>>,
    refused_heartbeats: Mutex<BTreeSet<TaskId>>,
    /// Queue to which no task can be added.
    unreachable_queue: Mutex<Option<QueueName>>,
    /// Number of reads of tasks before the one that fails.
    failing_read: Mutex<Option<u32>>,
    /// Maximum number of tasks that one list examines.
    most_examined: Mutex<Option<u32>>,
    loses_settlement: AtomicBool,
    forbids_force: AtomicBool,
    holds_settlements: watch::Sender<bool>,
    holds_lock_lists: watch::Sender<bool>,
    /// Number of next calls to refuse that settle attempts, and the error.
    refused_settlements: Mutex<(u32, StoreErrorKind)>,
    leases: AtomicU32,
    settlements: AtomicU32,
    heartbeats: AtomicU32,
    lock_lists: AtomicU32,
}

impl FaultyStore {
    /// Creates a store without faults.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let (planned, lasting, log) = (Mutex::default(), Mutex::new(Fault::None), Mutex::default());
        let [leases, settlements, heartbeats, lock_lists] = [0; 4].map(AtomicU32::new);
        let refused_settlements = Mutex::new((0, StoreErrorKind::NotPermitted));
        let (most_settled, failing_read, loses_settlement, holds_settlements) = Default::default();
        let (refused_tasks, refused_heartbeats, unreachable_queue, forbids_force) = Default::default();
        let (holds_lock_lists, most_examined) = Default::default();
        Arc::new(Self {
            store,
            planned,
            lasting,
            log,
            most_settled,
            refused_tasks,
            refused_heartbeats,
            unreachable_queue,
            failing_read,
            most_examined,
            loses_settlement,
            forbids_force,
            holds_settlements,
            holds_lock_lists,
            refused_settlements,
            leases,
            settlements,
            heartbeats,
            lock_lists,
        })
    }

    /// Plans faults for the next calls.
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// Sets the fault of every call that has no planned fault.
    pub fn from_now_on(&self, fault: Fault) {
        *self.lasting.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Delays all settlements until this is called with `false`.
    pub fn hold_settlements(&self, hold: bool) {
        self.holds_settlements.send_replace(hold);
    }

    /// Delays the answers to all lists of locks until this is called with `false`.
    pub fn hold_lock_lists(&self, hold: bool) {
        self.holds_lock_lists.send_replace(hold);
    }

    /// Permanently refuses settlements whose results have more bytes than this in total.
    pub fn settles_at_most(&self, bytes: usize) {
        *self.most_settled.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }

    /// Refuses every call that settles one of these tasks, until this is called again.
    pub fn refuse_settlements_of(&self, tasks: impl IntoIterator<Item = TaskId>) {
        *self.refused_tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks.into_iter().collect();
    }

    /// Loses every request that adds a task to this queue.
    pub fn lose_enqueues_to(&self, queue: QueueName) {
        *self.unreachable_queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }

    /// Refuses every heartbeat of one of these tasks, until this is called again.
    pub fn refuse_heartbeats_of(&self, tasks: impl IntoIterator<Item = TaskId>) {
        *self.refused_heartbeats.lock().unwrap_or_else(PoisonError::into_inner) = tasks.into_iter().collect();
    }

    /// Refuses this number of calls that settle attempts, whatever they contain, with an error of this kind.
    pub fn refuse_next_settlements(&self, calls: u32, kind: StoreErrorKind) {
        *self.refused_settlements.lock().unwrap_or_else(PoisonError::into_inner) = (calls, kind);
    }

    fn next_refusal(&self) -> Option<Error> {
        let mut refused = self.refused_settlements.lock().unwrap_or_else(PoisonError::into_inner);
        refused.0 = refused.0.checked_sub(1)?;
        Some(Error::store(refused.1, "the store refuses this call", "nothing: this is a test"))
    }

    /// Fails one read of tasks, a list or a query: the one after this number of further reads. The
    /// planned faults do not concern reads.
    pub fn fail_read_after(&self, reads: u32) {
        *self.failing_read.lock().unwrap_or_else(PoisonError::into_inner) = Some(reads);
    }

    /// Ends each list of tasks after it has examined this number of them, as an engine does that finds tasks by
    /// reading all.
    pub fn examine_at_most(&self, tasks: u32) {
        *self.most_examined.lock().unwrap_or_else(PoisonError::into_inner) = Some(tasks);
    }

    /// Lists tasks by examining at most this number of all tasks.
    async fn list_by_examining(&self, query: &ListTasks, most: u32) -> Result<Page<Task>> {
        let all = |limit| ListTasks::default().after(query.after.clone()).limit(limit);
        let matches = |task: &Task| {
            query.queue.as_ref().is_none_or(|queue| task.queue == *queue)
                && query.lock.as_ref().is_none_or(|lock| task.lock.as_ref() == Some(lock))
                && query.state.is_none_or(|state| task.state == state)
        };
        let examined = self.inner_tasks().list(&all(most)).await?;
        let last = (1..)
            .zip(&examined.items)
            .filter(|(_, task)| matches(task))
            .nth((query.limit as usize).saturating_sub(1));
        let mut page = match last {
            Some((number, _)) => self.inner_tasks().list(&all(number)).await?,
            None => examined,
        };
        page.items.retain(matches);
        Ok(page)
    }

    fn read_fault(&self) -> Result<()> {
        let mut failing = self.failing_read.lock().unwrap_or_else(PoisonError::into_inner);
        match *failing {
            Some(0) => {
                *failing = None;
                let hint = "nothing: this is a test";
                Err(Error::store(StoreErrorKind::Unavailable, "the connection was cut", hint))
            }
            left => {
                *failing = left.map(|left| left - 1);
                Ok(())
            }
        }
    }

    /// Acknowledges the next settlement and does not keep it, as an engine does whose replica takes
    /// over without its last writes.
    pub fn lose_next_settlement(&self) {
        self.loses_settlement.store(true, Ordering::SeqCst);
    }

    /// Refuses every forced release from now on, as a server does for a caller that is no administrator.
    pub fn forbid_force(&self) {
        self.forbids_force.store(true, Ordering::SeqCst);
    }

    /// Returns every lock operation that was sent so far.
    pub fn sent(&self) -> Vec<LockOp> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the numbers of calls so far that lease tasks, and that settle attempts.
    pub fn task_calls(&self) -> (u32, u32) {
        (self.leases.load(Ordering::SeqCst), self.settlements.load(Ordering::SeqCst))
    }

    /// Returns the number of lists of locks that were read so far.
    pub fn lock_lists(&self) -> u32 {
        self.lock_lists.load(Ordering::SeqCst)
    }

    /// Returns the number of heartbeats so far.
    pub fn heartbeats(&self) -> u32 {
        self.heartbeats.load(Ordering::SeqCst)
    }

    fn inner_tasks(&self) -> &dyn TaskStore {
        self.store.tasks().expect("the store below has tasks")
    }

    /// Runs a call with the next planned fault.
    async fn through<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let lasting = || *self.lasting.lock().unwrap_or_else(PoisonError::into_inner);
        let hint = "nothing: this is a test";
        let lost = || Err(Error::store(StoreErrorKind::Unavailable, "the connection was cut", hint));
        match planned.unwrap_or_else(lasting) {
            Fault::None => call.await,
            Fault::LoseRequest => lost(),
            Fault::LoseAnswer => {
                call.await?;
                lost()
            }
            Fault::Delay(delay) => {
                let answer = call.await;
                tokio::time::sleep(delay).await;
                answer
            }
            Fault::Hang => {
                call.await?;
                std::future::pending().await
            }
            Fault::Refuse => Err(Error::store(StoreErrorKind::Broken, "the store is gone", hint)),
            Fault::RefuseFor(time) => {
                let (until, said) = (BootInstant::now().plus(time), "too many requests".to_owned());
                let refused = Error::store(StoreErrorKind::Unavailable, "the store refuses requests", hint);
                Err(refused.because(RefusedUntil { until, said }))
            }
            Fault::Panic => panic!("a panic that a test wanted"),
            Fault::Block(time) => {
                std::thread::sleep(time);
                call.await
            }
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
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
impl LockStore for FaultyStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(op.clone());
        if matches!(op, LockOp::ForceRelease(_)) && self.forbids_force.load(Ordering::SeqCst) {
            return Err(not_permitted("only an administrator may do this"));
        }
        self.through(self.store.locks().apply(name, op)).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.store.locks().get(name).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let lasting = *self.lasting.lock().unwrap_or_else(PoisonError::into_inner);
        if lasting == Fault::Hang {
            std::future::pending::<()>().await;
        }
        self.store.locks().peek(name, waiter).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let page = self.store.locks().list(query).await;
        self.lock_lists.fetch_add(1, Ordering::SeqCst);
        wait_while_held(&self.holds_lock_lists).await;
        page
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.store.locks().history(query).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store.locks().now().await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.store.locks().subscribe_waiter(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.store.locks().sweep(limit).await
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.store.locks().forget(idle, limit).await
    }
}

#[async_trait]
impl TaskStore for FaultyStore {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let unreachable = self.unreachable_queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if new.iter().any(|new| unreachable.as_ref() == Some(&new.queue)) {
            let hint = "nothing: this is a test";
            return Err(Error::store(StoreErrorKind::Unavailable, "the connection was cut", hint));
        }
        self.through(self.inner_tasks().enqueue(new)).await
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        self.leases.fetch_add(1, Ordering::SeqCst);
        self.through(self.inner_tasks().lease(request)).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        self.heartbeats.fetch_add(1, Ordering::SeqCst);
        let refused = self.refused_heartbeats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if held.iter().any(|held| refused.contains(&held.id)) {
            return Err(not_permitted("the task is out of reach"));
        }
        self.through(self.inner_tasks().heartbeat(worker, held, ttl)).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.through(self.inner_tasks().deregister(worker)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        self.settlements.fetch_add(1, Ordering::SeqCst);
        wait_while_held(&self.holds_settlements).await;
        let most = *self.most_settled.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: usize = settle.iter().map(|settle| settle.result.bytes()).sum();
        if most.is_some_and(|most| bytes > most) {
            return Err(ValidationError::other(format!("a call of {bytes} bytes is too large")).into());
        }
        let refused = self.refused_tasks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(refusal) = self.next_refusal() {
            return Err(refusal);
        }
        if settle.iter().any(|settle| refused.contains(&settle.id)) {
            return Err(not_permitted("the task is out of reach"));
        }
        if self.loses_settlement.swap(false, Ordering::SeqCst) {
            return Ok(vec![Settled::Now(TaskState::Succeeded); settle.len()]);
        }
        self.through(self.inner_tasks().settle(settle)).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        self.through(self.inner_tasks().change(id, op)).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.through(self.inner_tasks().recover(limit)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.read_fault()?;
        self.inner_tasks().get(id).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.inner_tasks().get_by_key(queue, key).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.read_fault()?;
        let most = *self.most_examined.lock().unwrap_or_else(PoisonError::into_inner);
        match most {
            Some(most) => self.list_by_examining(query, most).await,
            None => self.inner_tasks().list(query).await,
        }
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.read_fault()?;
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
        self.read_fault()?;
        self.inner_tasks().now().await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.inner_tasks().subscribe_queues(queues)
    }
}

async fn wait_while_held(holds: &watch::Sender<bool>) {
    // The sender belongs to the store, so the channel is not closed.
    let _ = holds.subscribe().wait_for(|holds| !holds).await;
}

fn not_permitted(message: &str) -> Error {
    Error::store(StoreErrorKind::NotPermitted, message, "nothing: this is a test")
}
