//! Handle on a store: the entry point of the client.

use std::sync::Arc;
use std::time::Duration;

use super::availability::Availability;
use super::background::BackgroundThreads;
use super::locks::in_doubt::{self, RETRY_FOR, Released};
use super::locks::{EventView, LastLease, LockBuilder, LockStatus, check_ttl};
use super::maintenance::Maintenance;
use super::schedules::{ScheduleBuilder, Schedules};
use super::tasks::{EnqueueBuilder, EnqueueResult, TaskType, Tasks, WorkerBuilder};
use super::tasks::{enqueue, new_task};
use super::workflows::{StartBuilder, Workflows, clear_all_stale};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    ForceRelease, Holder, Lease, LeaseId, LockName, LockOp, LockRecord, NewTask, NotHeld, Outcome, Payload,
    QueueName, Reason, Release, Renew, RequestRelease, StaleToken, Swept, TaskId, Timestamp, Token, Ttl,
    WorkflowName,
};
use crate::store::{
    self, BootInstant, Capabilities, HealthCheck, InstrumentedStore, ListEvents, ListLocks, LockStore, Page,
    Store, StoreUrl, TaskStore,
};

/// Number of the newest events that are searched for the lease that ended last.
const SEARCHED_EVENTS: u32 = 20;

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

#[derive(Clone)]
pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) background: Arc<BackgroundThreads>,
    pub(super) availability: Arc<Availability>,
    /// Default holder: host name and process id.
    pub(super) holder: Holder,
    /// Whether renewals are recorded in the history.
    pub(super) log_renewals: bool,
}

impl Inner {
    /// Returns the operation that renews a lease.
    pub(super) fn renewal(&self, renew: Renew) -> LockOp {
        if self.log_renewals { LockOp::RenewLogged(renew) } else { LockOp::Renew(renew) }
    }

    pub(super) fn locks(&self) -> &dyn LockStore {
        self.store.locks()
    }

    pub(super) fn tasks(&self) -> Result<&dyn TaskStore> {
        self.store.tasks().ok_or_else(|| {
            let message = format!("there are no tasks on {}", self.store.url());
            let hint = "use sqlite:, postgres://, redis:// or github:// for tasks";
            Error::store(StoreErrorKind::NotSupported, message, hint)
        })
    }
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
        let holder = Holder::new(format!("{}:{}", store::host_name(), std::process::id()))?;
        let (background, availability) = (Arc::new(BackgroundThreads::start()?), Arc::default());
        Ok(Self { inner: Arc::new(Inner { store, background, availability, holder, log_renewals: false }) })
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
    pub fn lock<N>(&self, name: N) -> LockBuilder
    where
        N: TryInto<LockName>,
        N::Error: Into<Error>,
    {
        LockBuilder::new(self.inner.clone(), name)
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
        EnqueueBuilder::typed(self.inner.clone(), work)
    }

    /// Returns a builder that adds a task without a Rust type, from a queue and a payload.
    pub fn enqueue_to<Q>(&self, queue: Q, payload: Payload) -> EnqueueBuilder
    where
        Q: TryInto<QueueName>,
        Q::Error: Into<Error>,
    {
        EnqueueBuilder::plain(self.inner.clone(), queue, payload)
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
    pub fn schedule<W: TaskType>(&self, name: &str, cron: &str, work: &W) -> ScheduleBuilder {
        ScheduleBuilder::typed(self.inner.clone(), name, cron, work)
    }

    /// Returns a builder for a schedule whose tasks have no Rust type.
    pub fn schedule_to<Q>(&self, name: &str, cron: &str, queue: Q, payload: Payload) -> ScheduleBuilder
    where
        Q: TryInto<QueueName>,
        Q::Error: Into<Error>,
    {
        ScheduleBuilder::plain(self.inner.clone(), name, cron, queue, payload)
    }

    /// Returns the administrative API for schedules.
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
    pub fn workflow<N>(&self, name: N) -> StartBuilder
    where
        N: TryInto<WorkflowName>,
        N::Error: Into<Error>,
    {
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

    /// Returns the current status of a lock; for a free lock, also the lease that ended last.
    pub async fn status(&self, name: &LockName) -> Result<LockStatus> {
        let record = self.inner.locks().get(name).await?;
        let record = record.unwrap_or_else(|| LockRecord::new(name.clone()));
        let mut status = LockStatus::of(&record, self.now().await?);
        if record.holders.is_empty() && record.version > 0 {
            let newest =
                ListEvents { lock: Some(name.clone()), limit: SEARCHED_EVENTS, ..ListEvents::default() };
            status.last = LastLease::of(self.inner.locks().history(&newest).await?.items);
        }
        Ok(status)
    }

    /// Returns one page of the locks of the store.
    pub async fn list(&self, query: &ListLocks) -> Result<Page<LockStatus>> {
        let page = self.inner.locks().list(query).await?;
        let now = self.now().await?;
        let items = page.items.iter().map(|record| LockStatus::of(record, now)).collect();
        Ok(Page { items, next: page.next })
    }

    /// Returns one page of the history.
    pub async fn history(&self, query: &ListEvents) -> Result<Page<EventView>> {
        let page = self.inner.locks().history(query).await?;
        Ok(Page { items: page.items.into_iter().map(EventView::from).collect(), next: page.next })
    }

    /// Renews a lease that is held without a guard, by its id and token.
    pub async fn renew(
        &self,
        name: &LockName,
        lease_id: LeaseId,
        token: Token,
        ttl: Option<Ttl>,
    ) -> Result<LockStatus> {
        self.renew_lease(name, lease_id, token, ttl).await?;
        self.status(name).await
    }

    /// Like [`renew`](Self::renew), but returns only the lease: one round trip.
    pub async fn renew_lease(
        &self,
        name: &LockName,
        lease_id: LeaseId,
        token: Token,
        ttl: Option<Ttl>,
    ) -> Result<Lease> {
        if let Some(ttl) = ttl {
            check_ttl(&self.inner, ttl)?;
        }
        match self.apply(name, self.inner.renewal(Renew { lease_id, token, ttl })).await? {
            Outcome::Renewed(lease) => {
                // A guard may hold the lease: after a shorter TTL its next renewal would come too
                // late.
                if ttl.is_some() {
                    self.notify_holders(name, &Outcome::Renewed(lease.clone())).await;
                }
                Ok(lease)
            }
            other => Err(unexpected(name, other)),
        }
    }

    /// Releases a lease that is held without a guard, by its id and token.
    pub async fn release(&self, name: &LockName, lease_id: LeaseId, token: Token) -> Result<LockStatus> {
        self.release_lease(name, lease_id, token).await?;
        self.status(name).await
    }

    /// Like [`release`](Self::release), but does not query the lock afterwards: one round trip.
    ///
    /// If the response of the store is lost, the operation is sent again. The call succeeds if the
    /// first attempt released the lease.
    pub async fn release_lease(&self, name: &LockName, lease_id: LeaseId, token: Token) -> Result<()> {
        let (release, until) =
            (Release { lease_id, token, at_least: None }, BootInstant::now().plus(RETRY_FOR));
        match in_doubt::release(self.inner.locks(), name, &release, until).await? {
            Released::Yes(lease) => {
                if let Some(lease) = lease {
                    self.notify_holders(name, &Outcome::Released(lease)).await;
                }
                Ok(())
            }
            Released::Ended(now) => Err(unexpected(name, Outcome::NotHeld(now))),
        }
    }

    /// Requests that the holders of a lock release it when they can. Holders receive the request at
    /// once if the store notifies them, else with their next renewal. Returns the number of
    /// holders: zero if the response of the store was lost and the holders have released the lock
    /// since.
    pub async fn request_release(&self, name: &LockName, by: Holder, reason: Option<Reason>) -> Result<u32> {
        let request = RequestRelease { token: None, by, reason };
        let holders = in_doubt::request_release(self.inner.locks(), name, request).await?;
        self.notify_holders(name, &Outcome::Asked(holders)).await;
        Ok(holders)
    }

    /// Takes a lock from the holder with this token by force. If no lease has this token any more,
    /// nothing happens. The holder may still be working; its token is stale from now on. The holder
    /// learns of the loss at once if the store notifies it, else with its next renewal.
    pub async fn force_release(
        &self,
        name: &LockName,
        token: Token,
        by: Holder,
        reason: Reason,
    ) -> Result<LockStatus> {
        let force = ForceRelease { token, by, reason };
        if let Some(lease) = in_doubt::force_release(self.inner.locks(), name, force).await? {
            self.notify_holders(name, &Outcome::Forced(lease)).await;
        }
        self.status(name).await
    }

    async fn notify_holders(&self, name: &LockName, outcome: &Outcome) {
        store::notify_holders(&*self.inner.store, name, outcome).await;
    }

    /// Checks that a token belongs to a live lease of the lock; fails with [`StaleToken`] if it
    /// does not.
    pub async fn check_fence(&self, name: &LockName, token: Token) -> Result<LockStatus> {
        let status = self.status(name).await?;
        let live = status.holders.iter().any(|holder| holder.token == token && !holder.stale);
        if live { Ok(status) } else { Err(StaleToken { token, newest: status.token }.into()) }
    }

    /// Removes expired leases and tickets once, for up to `limit` locks. Also removes the locks of
    /// workflows whose execution is not running.
    pub async fn sweep(&self, limit: u32) -> Result<Swept> {
        let mut swept = self.inner.locks().sweep(limit).await?;
        // Executions need tasks with locks: without them there are no workflows.
        if self.inner.store.tasks().is_some() && self.inner.store.capabilities().tasks.locks {
            swept.leases += clear_all_stale(&self.inner).await?;
        }
        Ok(swept)
    }

    /// Removes the records of up to `limit` locks that have no holder and no waiter and were not
    /// granted for `idle`; returns their number. The tokens of such a lock keep rising when it is
    /// used again. One call examines a bounded number of locks, and the next call continues from
    /// there. Returns 0 on stores that keep every lock.
    pub async fn forget_idle(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.inner.locks().forget(idle, limit).await
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

    async fn apply(&self, name: &LockName, op: LockOp) -> Result<Outcome> {
        self.inner.locks().apply(name, &op).await
    }
}

impl std::fmt::Debug for Leasehold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leasehold").field("store", &self.url()).finish_non_exhaustive()
    }
}

/// Returns the error for an outcome that the caller did not expect.
pub(super) fn unexpected(lock: &LockName, outcome: Outcome) -> Error {
    let lock = lock.clone();
    let now = match outcome {
        Outcome::NotHeld(now) => now,
        _ => NotHeld { token: Token::default(), holders: Vec::new() },
    };
    Error::NotHeld { lock, now: Box::new(now) }
}
