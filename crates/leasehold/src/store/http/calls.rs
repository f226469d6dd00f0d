//! Locks, tasks and documents: each call is one HTTP exchange.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::HttpClient;
use super::subscriber::Subscriber;
use crate::Result;
use crate::model::{
    Acquire, Enqueued, Event, FinishedFilter, HeartbeatResult, HeldTask, LeaseId, LeaseTasks, Leased,
    LockName, LockOp, LockRecord, LockRequest, NewTask, Outcome, Pause, QueueName, QueueStatus, Recovered,
    Settle, Settled, Swept, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl, WorkerId, WorkerInfo,
    WorkerStatus,
};
use crate::store::protocol::{DocCall, LockCall, MAX_KEYS, TaskCall};
use crate::store::repeat::Repeat;
use crate::store::{
    Capabilities, Cursor, Document, DocumentStore, ListEvents, ListLocks, ListTasks, LockStore, NewDocument,
    Page, Peek, PutIf, QueueSubscription, TaskStore, Time, WaiterSubscription,
};

#[derive(Debug)]
pub(super) struct HttpLocks {
    pub(super) client: Arc<HttpClient>,
    pub(super) subscriber: Arc<Subscriber>,
    /// Whether the server deletes idle locks.
    pub(super) supports_forget: bool,
}

fn path(call: LockCall) -> String {
    format!("locks/{}", call.as_str())
}

#[async_trait]
impl LockStore for HttpLocks {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        self.client.apply(path(LockCall::Apply), name, &without_process(op)).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.client.call(path(LockCall::Get), &(name,), Repeat::Safe).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.client.call(path(LockCall::Peek), &(name, waiter), Repeat::Safe).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.client.call(path(LockCall::List), &(query,), Repeat::Safe).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.client.call(path(LockCall::History), &(query,), Repeat::Safe).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.client.call(path(LockCall::Now), &(), Repeat::Safe).await
    }

    fn subscribe_waiter(&self, _: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.subscriber.subscribe_waiter(*waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.client.call(path(LockCall::Sweep), &(limit,), Repeat::Unsafe).await
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        if !self.supports_forget {
            return Ok(0);
        }
        self.client.call(path(LockCall::Forget), &(idle, limit), Repeat::Unsafe).await
    }
}

/// Removes the process from an acquire: processes of this machine mean nothing to the server.
fn without_process(op: &LockOp) -> Cow<'_, LockOp> {
    match op {
        LockOp::Acquire(Acquire { request, queue, steal_after }) if request.process.is_some() => {
            let request = Arc::new(LockRequest { process: None, ..(**request).clone() });
            Cow::Owned(LockOp::Acquire(Acquire { request, queue: *queue, steal_after: *steal_after }))
        }
        op => Cow::Borrowed(op),
    }
}

#[derive(Debug)]
pub(super) struct HttpTasks {
    pub(super) client: Arc<HttpClient>,
    pub(super) subscriber: Arc<Subscriber>,
}

impl HttpTasks {
    async fn call<A: Serialize, R: DeserializeOwned>(&self, method: TaskCall, arguments: &A) -> Result<R> {
        self.client.call(format!("tasks/{}", method.as_str()), arguments, method).await
    }
}

#[async_trait]
impl TaskStore for HttpTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let added = self.call(TaskCall::Enqueue, &(new,)).await?;
        // Workers of this process need not wait for the notification of the server.
        for new in new {
            self.subscriber.notify_queue(&new.queue);
        }
        Ok(added)
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        self.call(TaskCall::Lease, &(request,)).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        self.call(TaskCall::Heartbeat, &(worker, held, ttl)).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.call(TaskCall::Deregister, &(worker,)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        self.call(TaskCall::Settle, &(settle,)).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        self.call(TaskCall::Change, &(id, op)).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.call(TaskCall::Recover, &(limit,)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.call(TaskCall::Get, &(id,)).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.call(TaskCall::GetByKey, &(queue, key)).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.call(TaskCall::List, &(query,)).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.call(TaskCall::Queues, &()).await
    }

    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        self.call(TaskCall::Queue, &(queue,)).await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        self.call(TaskCall::Pause, &(queue, pause)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.call(TaskCall::Workers, &()).await
    }

    async fn archive(&self, filter: &FinishedFilter) -> Result<u64> {
        self.call(TaskCall::Archive, &(filter,)).await
    }

    async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        self.call(TaskCall::Purge, &(filter,)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.call(TaskCall::Now, &()).await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.subscriber.subscribe_queues(queues)
    }
}

#[derive(Debug)]
pub(super) struct HttpDocs {
    pub(super) client: Arc<HttpClient>,
    pub(super) capabilities: Capabilities,
    pub(super) reads_may_be_old: bool,
}

impl HttpDocs {
    async fn call<A: Serialize, R: DeserializeOwned>(&self, method: DocCall, arguments: &A) -> Result<R> {
        self.client.call(format!("docs/{}", method.as_str()), arguments, method).await
    }
}

#[async_trait]
impl DocumentStore for HttpDocs {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn url(&self) -> String {
        self.client.connection.display_url().to_owned()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let found: Vec<Option<Document>> = self.call(DocCall::Get, &([key],)).await?;
        Ok(found.into_iter().next().flatten())
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Document>>> {
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_KEYS) {
            found.extend(self.call::<_, Vec<Option<Document>>>(DocCall::Get, &(keys,)).await?);
        }
        Ok(found)
    }

    /// Writes a document. The annotations are not sent: people inspect the engine of the server, not
    /// this client.
    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        self.call(DocCall::PutIf, &(key, expected, draft.body, draft.keep)).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        self.call(DocCall::List, &(prefix, after, limit)).await
    }

    async fn time(&self) -> Result<Time> {
        self.call(DocCall::Time, &()).await
    }

    fn reads_may_be_old(&self) -> bool {
        self.reads_may_be_old
    }
}
