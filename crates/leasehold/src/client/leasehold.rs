//! Handle on a store: the entry point of the client.

use std::sync::Arc;
use std::time::Duration;

use super::context::{Inner, parsed};
use super::locks::{LockBuilder, Locks};
use super::maintenance::Maintenance;
#[cfg(feature = "schedules")]
use super::schedules::{ScheduleBuilder, Schedules, new_schedule};
use super::tasks::{EnqueueBuilder, EnqueueResult, TaskType, Tasks, WorkerBuilder};
use super::tasks::{enqueue, new_task};
use super::workflows::{StartBuilder, Workflows};
use crate::error::{Error, Result};
#[cfg(feature = "schedules")]
use crate::model::{CronExpression, Schedule, ScheduleName};
use crate::model::{LockName, NewTask, Payload, QueueName, TaskId, Timestamp, Ttl, WorkflowName};
use crate::store::clock::new_id;
use crate::store::{self, BootInstant, Capabilities, HealthCheck, InstrumentedStore, Store, StoreUrl};

/// Handle on a store. Cheap to clone; all clones share one connection and the same background threads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
/// use leasehold::Leasehold;
///
/// let leasehold = Leasehold::connect("memory:").await?;
/// let guard = leasehold.lock("nightly-report").ttl(Duration::from_secs(30)).acquire().await?;
/// let sent = guard.run(async |lease| format!("sent under token {}", lease.token())).await?;
/// assert!(sent.starts_with("sent under token "));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Leasehold {
    pub(super) inner: Arc<Inner>,
}

impl Leasehold {
    /// Opens the store at this URL: `sqlite:PATH`, `sqlite:` for the default path, `postgres://…`,
    /// `redis://…`, `dynamodb://TABLE`, `github://OWNER/REPO`, `https://HOST` of a leasehold
    /// server, `memory:`.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::with_store(store::connect(&StoreUrl::parse(url)?).await?)
    }

    /// Creates a handle on a store that is already open.
    pub fn with_store(store: Arc<dyn Store>) -> Result<Self> {
        Ok(Self { inner: Arc::new(Inner::new(store)?) })
    }

    /// Returns a handle on the same store that records every renewal of a lock's lease in the
    /// history, as an event `renewed`, for audits. Each renewal then costs as much as an acquire.
    /// `github://` counts renewals and records no events for them.
    #[must_use]
    pub fn logging_renewals(&self) -> Self {
        Self { inner: Arc::new(Inner { log_renewals: true, ..(*self.inner).clone() }) }
    }

    /// Returns a handle on the same store whose operations are counted and timed, and the store
    /// that contains the counters. Operations through the original handle are not counted.
    pub fn instrumented(&self) -> (Self, Arc<InstrumentedStore>) {
        let instrumented = Arc::new(InstrumentedStore::new(self.inner.store.clone()));
        let inner = Inner { store: instrumented.clone(), ..(*self.inner).clone() };
        (Self { inner: Arc::new(inner) }, instrumented)
    }

    /// Returns the store.
    pub fn store(&self) -> Arc<dyn Store> {
        self.inner.store.clone()
    }

    /// Returns the capabilities of the engine.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.store.capabilities()
    }

    /// Returns the URL of the store, without secrets.
    pub fn url(&self) -> String {
        self.inner.store.url()
    }

    /// Returns the health checks of the engine.
    pub async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        self.inner.store.check_health().await
    }

    /// Returns the store's time.
    pub async fn now(&self) -> Result<Timestamp> {
        self.inner.locks().now().await
    }

    /// Returns a builder for the acquisition of a lock.
    pub fn lock(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> LockBuilder {
        LockBuilder::new(self.inner.clone(), name)
    }

    /// Returns the administrative API for locks.
    pub fn locks(&self) -> Locks {
        Locks::new(self.inner.clone())
    }

    /// Returns a builder that adds a task.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Encode { video: String }
    /// # impl leasehold::TaskType for Encode { const QUEUE: &'static str = "video"; }
    /// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
    /// let added = leasehold.enqueue(&Encode { video: "cat.mp4".to_owned() }).key("cat").priority(5).await?;
    /// assert!(!added.duplicate);
    /// # Ok(()) }
    /// ```
    pub fn enqueue<W: TaskType>(&self, work: &W) -> EnqueueBuilder {
        EnqueueBuilder::new(self.inner.clone(), new_task(work))
    }

    /// Returns a builder that adds a task without a Rust type, from a queue and a payload.
    pub fn enqueue_to(
        &self,
        queue: impl TryInto<QueueName, Error: Into<Error>>,
        payload: Payload,
    ) -> EnqueueBuilder {
        let new = parsed(queue).map(|queue| NewTask::new(TaskId::from_uuid(new_id()), queue, payload));
        EnqueueBuilder::new(self.inner.clone(), new)
    }

    /// Adds several tasks atomically: all or none.
    pub async fn enqueue_all<'a, W: TaskType>(
        &self,
        work: impl IntoIterator<Item = &'a W>,
    ) -> Result<Vec<TaskId>> {
        let new = work.into_iter().map(new_task).collect::<Result<Vec<_>>>()?;
        let added = enqueue(&self.inner, new).await?;
        added.into_iter().map(|added| added.map(|added| added.id)).collect()
    }

    /// Adds several tasks, as created by [`EnqueueBuilder::into_new_task`]. A task whose key
    /// belongs to a task with another payload is not added; its result is an error.
    pub async fn enqueue_new(&self, new: Vec<NewTask>) -> Result<Vec<Result<EnqueueResult>>> {
        enqueue(&self.inner, new).await
    }

    /// Returns a builder for a schedule of recurring tasks: one task for each tick, regardless of
    /// the number of workers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report;
    /// # impl leasehold::TaskType for Report { const QUEUE: &'static str = "reports"; }
    /// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
    /// leasehold.schedule("nightly", "0 3 * * *", &Report).zone("Europe/Berlin").await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "schedules")]
    pub fn schedule<W: TaskType>(
        &self,
        name: impl TryInto<ScheduleName, Error: Into<Error>>,
        cron: impl TryInto<CronExpression, Error: Into<Error>>,
        work: &W,
    ) -> ScheduleBuilder {
        let schedule = new_task(work).and_then(|new| {
            let schedule = new_schedule(name, cron, new.queue, new.payload)?;
            Ok(Schedule { retries: new.retries, timeout: new.timeout, ..schedule })
        });
        ScheduleBuilder::new(self.inner.clone(), schedule)
    }

    /// Returns a builder for a schedule whose tasks have no Rust type.
    #[cfg(feature = "schedules")]
    pub fn schedule_to(
        &self,
        name: impl TryInto<ScheduleName, Error: Into<Error>>,
        cron: impl TryInto<CronExpression, Error: Into<Error>>,
        queue: impl TryInto<QueueName, Error: Into<Error>>,
        payload: Payload,
    ) -> ScheduleBuilder {
        ScheduleBuilder::new(self.inner.clone(), new_schedule(name, cron, queue, payload))
    }

    /// Returns the administrative API for schedules.
    #[cfg(feature = "schedules")]
    pub fn schedules(&self) -> Result<Schedules> {
        Schedules::new(self.inner.clone())
    }

    /// Returns the administrative API for tasks and queues.
    pub fn tasks(&self) -> Result<Tasks> {
        Tasks::new(self.inner.clone())
    }

    /// Returns a builder that starts an execution of a workflow.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
    /// use leasehold::StartResult;
    ///
    /// let first = leasehold.workflow("deploy").key("event-17").start("v1.2").await?;
    /// let again = leasehold.workflow("deploy").key("event-17").start("v1.2").await?;
    /// let (StartResult::Started(first), StartResult::Duplicate(again)) = (first, again) else { panic!("one event, one execution") };
    /// assert_eq!(first.id, again.id);
    ///
    /// let other = leasehold.workflow("deploy").key("event-18").start("v1.3").await.unwrap_err();
    /// assert_eq!(other.code(), "WORKFLOW_LOCKED");
    /// # Ok(()) }
    /// ```
    pub fn workflow(&self, name: impl TryInto<WorkflowName, Error: Into<Error>>) -> StartBuilder {
        StartBuilder::new(self.inner.clone(), name)
    }

    /// Returns the administrative API for workflows and their executions.
    pub fn workflows(&self) -> Result<Workflows> {
        Workflows::new(self.inner.clone())
    }

    /// Returns a builder for a worker.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.inner.clone())
    }

    /// Starts background maintenance of locks that runs until the returned value is dropped: it
    /// removes expired leases and tickets, and locks that were not granted for `forget_after`
    /// ([`FORGET_LOCKS_AFTER`](crate::FORGET_LOCKS_AFTER) is a good value); `None` keeps idle locks.
    pub fn maintain_locks(&self, every: Duration, forget_after: Option<Ttl>) -> Maintenance {
        Maintenance::of_locks(&self.inner, every, forget_after)
    }

    /// Starts background maintenance of tasks that runs until the returned value is dropped: it ends
    /// leases of dead workers, makes due tasks ready, adds the tasks of schedules and purges old
    /// tasks. Every worker does the same; this is for a process without a worker.
    pub fn maintain_tasks(&self, every: Duration) -> Result<Maintenance> {
        Maintenance::of_tasks(&self.inner, every)
    }

    /// Returns how long the store takes to look up a lock, and the store's time, for health checks.
    pub async fn ping(&self) -> Result<(Duration, Timestamp)> {
        let probe = LockName::new("leasehold/ping")?;
        let sent = BootInstant::now();
        self.inner.locks().get(&probe).await?;
        let took = BootInstant::now().after(sent);
        Ok((took, self.now().await?))
    }

    /// Waits until the background work of dropped guards is done.
    pub async fn close(self) {
        self.inner.background.finish().await;
    }
}

impl std::fmt::Debug for Leasehold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leasehold").field("store", &self.url()).finish_non_exhaustive()
    }
}
