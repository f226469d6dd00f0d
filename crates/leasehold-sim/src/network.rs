//! Network between the client of a process and the engine: latency, lost and late messages, and the
//! store as the client sees it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::model::{
    Enqueued, Event, FinishedFilter, HeartbeatResult, HeldTask, LeaseId, LeaseTasks, Leased, LockName,
    LockOp, LockRecord, NewTask, Outcome, Pause, QueueName, QueueStatus, Recovered, Settle, Settled, Swept,
    Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl, WorkerId, WorkerInfo, WorkerStatus,
};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{
    Capabilities, Cas, Cursor, Document, DocumentStore, LeaseObservations, ListEvents, ListLocks, ListTasks,
    LockStore, NewDocument, Page, Peek, PutIf, QueueSubscription, Store, TaskStore, Time, WaiterSubscription,
};
use leasehold::{BootInstant, Leasehold, Result};
use tokio::task::AbortHandle;

use crate::audit;
use crate::documents::ProcessDocuments;
use crate::mutation::{Memory, Mutation};
use crate::plan::EngineKind;
use crate::process::{Process, killed, lost};

/// Time after which a call fails without an answer, as on every engine.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Fault of one call.
enum CallFault {
    None,
    /// The request never arrives.
    LostRequest,
    /// The request is executed, and its response never arrives.
    LostResponse,
    /// The request arrives after this time.
    SlowRequest(Duration),
    /// The response arrives after this time.
    SlowResponse(Duration),
}

/// What becomes of a request on its way if its call is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnDrop {
    MayArrive,
    /// It does not arrive: a store promises that a dropped call for a lock has no effect after a later one.
    IsLost,
}

/// Call whose request is on its way.
struct PendingCall {
    process: Arc<Process>,
    request: AbortHandle,
    on_drop: OnDrop,
}

impl PendingCall {
    fn has_ended(mut self) {
        self.on_drop = OnDrop::MayArrive;
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if self.on_drop == OnDrop::IsLost && !self.process.is_killed() {
            self.request.abort();
        }
    }
}

impl Process {
    /// Calls the engine over the network.
    pub(crate) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.call_with(work, OnDrop::MayArrive).await
    }

    async fn call_with<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T>> + Send + 'static,
        on_drop: OnDrop,
    ) -> Result<T> {
        self.scheduled().await;
        if self.is_killed() {
            return Err(killed());
        }
        let answer = self.transmit(work, on_drop).await;
        // A paused process reads its answer later, and a killed one never.
        self.scheduled().await;
        if self.is_killed() { Err(killed()) } else { answer }
    }

    async fn transmit<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T>> + Send + 'static,
        on_drop: OnDrop,
    ) -> Result<T> {
        let (fault, latency) = self.draw();
        let is_lost = matches!(fault, CallFault::LostRequest | CallFault::LostResponse);
        if is_lost && self.world.plan.mutation == Some(Mutation::WaitsForever) {
            return std::future::pending().await;
        }
        match fault {
            CallFault::None => {
                sleep(latency).await;
                let answer = work.await;
                sleep(latency / 2).await;
                answer
            }
            CallFault::LostRequest => {
                sleep(latency).await;
                Err(lost())
            }
            CallFault::LostResponse => {
                let answer = work.await;
                sleep(latency).await;
                answer.and_then(|_| Err(lost()))
            }
            CallFault::SlowRequest(delay) => {
                // The request arrives although its call has timed out, or its process is dead by then.
                let executed = tokio::spawn(async move {
                    sleep(delay).await;
                    work.await
                });
                let pending =
                    PendingCall { process: self.clone(), request: executed.abort_handle(), on_drop };
                let answer = tokio::time::timeout(CALL_TIMEOUT, executed).await;
                pending.has_ended();
                answer.ok().and_then(Result::ok).unwrap_or_else(|| Err(lost()))
            }
            CallFault::SlowResponse(delay) => {
                let answer = work.await;
                sleep(delay.min(CALL_TIMEOUT)).await;
                if delay < CALL_TIMEOUT { answer } else { Err(lost()) }
            }
        }
    }

    /// Draws the fault and the latency of a call.
    fn draw(&self) -> (CallFault, Duration) {
        let plan = &self.world.plan;
        let mut rng = self.rng();
        let ttl = crate::world::millis(plan.ttl);
        let (fault, latency) = match rng.u32(0..1000) {
            _ if self.is_cut_off() => {
                let fault = match rng.u8(0..3) {
                    0 => CallFault::LostResponse,
                    1 => CallFault::SlowRequest(Duration::from_millis(rng.u64(5_000..3 * ttl))),
                    _ => CallFault::LostRequest,
                };
                (fault, CALL_TIMEOUT)
            }
            draw if draw < plan.call_faults && !self.world.is_draining() => {
                let slow = match rng.u8(0..4) {
                    0 => rng.u64(5_000..3 * ttl),
                    1 => rng.u64(1_000..5_000),
                    _ => rng.u64(100..2_000),
                };
                let slow = Duration::from_millis(slow);
                let fault = match rng.u8(0..4) {
                    0 => CallFault::LostRequest,
                    1 => CallFault::LostResponse,
                    2 => CallFault::SlowRequest(slow),
                    _ => CallFault::SlowResponse(slow),
                };
                (fault, Duration::from_millis(rng.u64(0..5_000)))
            }
            _ => {
                let latency = match rng.u8(0..10) {
                    0..6 => Duration::ZERO,
                    6..9 => Duration::from_millis(rng.u64(1..10)),
                    _ => Duration::from_millis(rng.u64(10..300)),
                };
                return (CallFault::None, latency);
            }
        };
        drop(rng);
        let (name, time) = match fault {
            CallFault::None => ("none", Duration::ZERO),
            CallFault::LostRequest => ("lost-request", latency),
            CallFault::LostResponse => ("lost-response", latency),
            CallFault::SlowRequest(time) => ("late-request", time),
            CallFault::SlowResponse(time) => ("late-response", time.min(CALL_TIMEOUT)),
        };
        self.fault(name, time);
        (fault, latency)
    }
}

/// Sleeps, unless the time is zero: even the shortest sleep lasts until the next tick of the timer.
async fn sleep(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Store as the client of a process sees it.
pub(crate) struct Network {
    process: Arc<Process>,
    engine: Arc<MemoryStore>,
    /// Locks as documents: the faults are between them and the documents.
    cas: Option<Arc<Cas<ProcessDocuments>>>,
}

impl Network {
    /// Creates the client of a process.
    pub(crate) fn connect(process: &Arc<Process>) -> Result<Leasehold> {
        process.pausing.enter(|| Leasehold::with_store(Arc::new(Self::new(process.clone())?)))
    }

    fn new(process: Arc<Process>) -> Result<Self> {
        let engine = process.world.engine.clone();
        let cas = match process.world.plan.engine {
            EngineKind::Memory => None,
            EngineKind::Cas | EngineKind::CasWithoutClock => {
                let documents = ProcessDocuments::new(process.clone());
                Some(Arc::new(Cas::with_observations(documents, LeaseObservations::default())?))
            }
        };
        Ok(Self { process, engine, cas })
    }

    /// Calls the tasks or documents of the engine.
    async fn on_engine<T: Send + 'static, F>(&self, call: impl FnOnce(Arc<MemoryStore>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.process.call(call(self.engine.clone())).await
    }

    /// Calls the locks of the engine.
    async fn on_locks<T: Send + 'static, F>(&self, call: impl FnOnce(Arc<dyn Store>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match &self.cas {
            None => self.process.call_with(call(self.engine.clone()), OnDrop::IsLost).await,
            Some(cas) => {
                self.process.scheduled().await;
                let answer = call(cas.clone()).await;
                self.process.scheduled().await;
                if self.process.is_killed() { Err(killed()) } else { answer }
            }
        }
    }
}

#[async_trait]
impl Store for Network {
    fn capabilities(&self) -> Capabilities {
        match &self.cas {
            None => self.engine.capabilities(),
            Some(cas) => {
                let mut capabilities = cas.capabilities();
                capabilities.tasks = Store::capabilities(&*self.engine).tasks;
                capabilities
            }
        }
    }

    fn url(&self) -> String {
        "simulated:".to_owned()
    }

    fn locks(&self) -> &dyn LockStore {
        self
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        Some(self)
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        Some(self)
    }
}

#[async_trait]
impl LockStore for Network {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let mutation = self.process.world.plan.mutation;
        let sent_op = match mutation {
            Some(mutation) => match self.process.memory().sent(mutation, op) {
                Ok(op) => op,
                Err(assumed) => return Ok(assumed),
            },
            None => op.clone(),
        };
        let sent = BootInstant::now();
        audit::lock_op_sent(&self.process, op);
        let (process, owned) = (self.process.clone(), name.clone());
        let answer = self
            .on_locks(move |store| async move {
                let answer = store.locks().apply(&owned, &sent_op).await;
                audit::lock_op_executed(&process, &owned, &sent_op, sent, &answer);
                answer
            })
            .await;
        if answer.is_ok() {
            audit::lock_op_answered(&self.process, op);
        }
        match mutation {
            Some(mutation) => self.process.memory().read(mutation, op, sent, answer),
            None => answer,
        }
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let name = name.clone();
        self.on_locks(move |store| async move { store.locks().get(&name).await }).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let (name, waiter) = (name.clone(), *waiter);
        self.on_locks(move |store| async move { store.locks().peek(&name, &waiter).await }).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let query = query.clone();
        self.on_locks(move |store| async move { store.locks().list(&query).await }).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let query = query.clone();
        self.on_locks(move |store| async move { store.locks().history(&query).await }).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.on_locks(move |store| async move { store.locks().now().await }).await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        match &self.cas {
            None => self.engine.locks().subscribe_waiter(lock, waiter),
            Some(cas) => cas.locks().subscribe_waiter(lock, waiter),
        }
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.on_locks(move |store| async move { store.locks().sweep(limit).await }).await
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.on_locks(move |store| async move { store.locks().forget(idle, limit).await }).await
    }
}

/// Returns the tasks of the engine.
fn tasks(engine: &MemoryStore) -> Result<&dyn TaskStore> {
    engine.tasks().ok_or_else(killed)
}

/// Returns the documents of the engine.
fn documents(engine: &MemoryStore) -> Result<&dyn DocumentStore> {
    engine.documents().ok_or_else(killed)
}

#[async_trait]
impl TaskStore for Network {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let mutation = self.process.world.plan.mutation;
        let sent = mutation.map_or_else(|| new.to_vec(), |mutation| Memory::added(mutation, new));
        let answer = self.on_engine(|engine| async move { tasks(&engine)?.enqueue(&sent).await }).await;
        match mutation {
            Some(mutation) => Memory::read_added(mutation, new, answer),
            None => answer,
        }
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let mutation = self.process.world.plan.mutation;
        let sent = mutation
            .map_or_else(|| settle.to_vec(), |mutation| self.process.memory().settled(mutation, settle));
        let world = self.process.world.clone();
        let answer = self
            .on_engine(|engine| async move {
                let settled = tasks(&engine)?.settle(&sent).await?;
                audit::settled(&world, &sent, &settled);
                Ok(settled)
            })
            .await;
        match mutation {
            Some(mutation) => Memory::read_settled(mutation, settle, answer),
            None => answer,
        }
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let request = request.clone();
        self.on_engine(move |engine| async move { tasks(&engine)?.lease(&request).await }).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let (worker, held) = (worker.clone(), held.to_vec());
        self.on_engine(move |engine| async move { tasks(&engine)?.heartbeat(&worker, &held, ttl).await })
            .await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.on_engine(move |engine| async move { tasks(&engine)?.deregister(worker).await }).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let op = op.clone();
        self.on_engine(move |engine| async move { tasks(&engine)?.change(id, &op).await }).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.on_engine(move |engine| async move { tasks(&engine)?.recover(limit).await }).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.on_engine(move |engine| async move { tasks(&engine)?.get(id).await }).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let (queue, key) = (queue.clone(), key.clone());
        self.on_engine(move |engine| async move { tasks(&engine)?.get_by_key(&queue, &key).await }).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        let query = query.clone();
        self.on_engine(move |engine| async move { tasks(&engine)?.list(&query).await }).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.on_engine(move |engine| async move { tasks(&engine)?.queues().await }).await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let queue = queue.clone();
        self.on_engine(move |engine| async move { tasks(&engine)?.pause(&queue, pause).await }).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.on_engine(move |engine| async move { tasks(&engine)?.workers().await }).await
    }

    async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        let which = which.clone();
        self.on_engine(move |engine| async move { tasks(&engine)?.archive(&which).await }).await
    }

    async fn purge(&self, which: &FinishedFilter) -> Result<u64> {
        let which = which.clone();
        self.on_engine(move |engine| async move { tasks(&engine)?.purge(&which).await }).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.on_engine(move |engine| async move { tasks(&engine)?.now().await }).await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.engine.tasks().expect("the engine has tasks").subscribe_queues(queues)
    }
}

#[async_trait]
impl DocumentStore for Network {
    fn capabilities(&self) -> Capabilities {
        Store::capabilities(self)
    }

    fn url(&self) -> String {
        Store::url(self)
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let key = key.to_owned();
        self.on_engine(move |engine| async move { documents(&engine)?.get(&key).await }).await
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let key = key.to_owned();
        self.on_engine(move |engine| async move { documents(&engine)?.put_if(&key, expected, draft).await })
            .await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let prefix = prefix.to_owned();
        self.on_engine(move |engine| async move { documents(&engine)?.list(&prefix, after, limit).await })
            .await
    }

    async fn time(&self) -> Result<Time> {
        self.on_engine(move |engine| async move { documents(&engine)?.time().await }).await
    }
}
