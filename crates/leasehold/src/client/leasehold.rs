//! The handle on a store: everything starts here.

use std::sync::Arc;
use std::time::Duration;

use super::builder::LockBuilder;
use super::contact::Contact;
use super::in_doubt::{self, RETRIES, Released};
use super::keeper::Keeper;
use super::schedules::{ScheduleBuilder, Schedules};
use super::status::{EventView, LastLease, LockStatus};
use super::sweeper::{FORGET_AFTER, Sweeper};
use super::tasks::{Added, Caretaker, EnqueueBuilder, Tasks, Work, WorkerBuilder};
use super::tasks::{enqueue, new_task};
use super::workflows::{StartBuilder, Workflows, clear_all_stale};
use crate::error::{Error, Result, Trouble};
use crate::model::{
    AskRelease, ForceRelease, Holder, Invalid, Lease, LeaseId, LockName, LockOp, LockRecord, NewTask,
    NotHeld, Outcome, Payload, QueueName, Reason, Release, Renew, StaleToken, Swept, TaskId, Timestamp,
    Token, Ttl, WorkflowName,
};
use crate::store::{
    self, Abilities, Finding, ListEvents, ListLocks, LockStore, MeteredStore, Moment, Page, Store, StoreUrl,
    TaskStore,
};

/// The lease that ended last is looked for among this many of the newest events.
const LAST_EVENTS: u32 = 20;

/// A handle on a store. Cheap to clone; all clones share one connection and one background thread.
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

pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) contact: Arc<Contact>,
    /// Who asks, if nobody says: host and process number.
    pub(super) holder: Holder,
    /// Renewals are written into the history.
    pub(super) log_renewals: bool,
}

impl Inner {
    /// The operation that renews a lease.
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
            Error::store(Trouble::NotSupported, message, hint)
        })
    }
}

impl Leasehold {
    /// Opens the store at this URL: `sqlite:PATH`, `sqlite:` for the default place, `postgres://…`, `redis://…`,
    /// `dynamodb://TABLE`, `github://OWNER/REPO`, `https://HOST` of a leasehold server, `memory:`.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::with_store(store::connect(&StoreUrl::parse(url)?).await?)
    }

    /// Uses a store that is already open.
    pub fn with_store(store: Arc<dyn Store>) -> Result<Self> {
        let holder = Holder::new(format!("{}:{}", store::host_name(), std::process::id()))?;
        let (keeper, contact) = (Arc::new(Keeper::start()?), Arc::default());
        Ok(Self { inner: Arc::new(Inner { store, keeper, contact, holder, log_renewals: false }) })
    }

    /// A handle on the same store that writes every renewal of a lease on a lock into the history, as an event `renewed`: for
    /// an audit. Each renewal then costs as much as an acquire. `github://` counts renewals, and writes no events for them.
    #[must_use]
    pub fn logging_renewals(&self) -> Self {
        let Inner { store, keeper, contact, holder, .. } = &*self.inner;
        let (store, keeper) = (store.clone(), keeper.clone());
        let (contact, holder) = (contact.clone(), holder.clone());
        Self { inner: Arc::new(Inner { store, keeper, contact, holder, log_renewals: true }) }
    }

    /// A handle on the same store whose doings are counted and timed, and where the numbers are. What is done through this
    /// one is not among them.
    pub fn metered(&self) -> (Self, Arc<MeteredStore>) {
        let metered = Arc::new(MeteredStore::new(self.inner.store.clone()));
        let (keeper, holder) = (self.inner.keeper.clone(), self.inner.holder.clone());
        let (store, contact) = (metered.clone(), self.inner.contact.clone());
        let log_renewals = self.inner.log_renewals;
        (Self { inner: Arc::new(Inner { store, keeper, contact, holder, log_renewals }) }, metered)
    }

    /// The store itself.
    pub fn store(&self) -> Arc<dyn Store> {
        self.inner.store.clone()
    }

    /// What the engine can and cannot do.
    pub fn abilities(&self) -> Abilities {
        self.inner.store.abilities()
    }

    /// The store's address, without secrets.
    pub fn url(&self) -> String {
        self.inner.store.url()
    }

    /// What the engine finds out about itself, for a look at its health.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.store.examine().await
    }

    /// The store's time.
    pub async fn now(&self) -> Result<Timestamp> {
        self.inner.locks().now().await
    }

    /// Begins to ask for a lock.
    pub fn lock<N>(&self, name: N) -> LockBuilder
    where
        N: TryInto<LockName>,
        N::Error: Into<Error>,
    {
        LockBuilder::new(self.inner.clone(), name)
    }

    /// Begins to add a task.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Encode { video: String }
    /// # impl leasehold::Work for Encode { const QUEUE: &'static str = "video"; }
    /// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
    /// let added = leasehold.enqueue(&Encode { video: "cat.mp4".to_owned() }).key("cat").priority(5).await?;
    /// assert!(!added.duplicate);
    /// # Ok(()) }
    /// ```
    pub fn enqueue<W: Work>(&self, work: &W) -> EnqueueBuilder {
        EnqueueBuilder::typed(self.inner.clone(), work)
    }

    /// Begins to add a task that has no type here, only a queue and a payload.
    pub fn enqueue_to<Q>(&self, queue: Q, payload: Payload) -> EnqueueBuilder
    where
        Q: TryInto<QueueName>,
        Q::Error: Into<Error>,
    {
        EnqueueBuilder::plain(self.inner.clone(), queue, payload)
    }

    /// Adds many tasks at once: all or none.
    pub async fn enqueue_all<'a, W: Work>(
        &self,
        work: impl IntoIterator<Item = &'a W>,
    ) -> Result<Vec<TaskId>> {
        let new = work.into_iter().map(new_task).collect::<Result<Vec<_>>>()?;
        let added = enqueue(&self.inner, new).await?;
        added.into_iter().map(|added| added.map(|added| added.id)).collect()
    }

    /// Adds many tasks at once, as [`EnqueueBuilder::into_new_task`] gives them. Those whose key is taken by another
    /// payload are left out, and say so.
    pub async fn enqueue_new(&self, new: Vec<NewTask>) -> Result<Vec<Result<Added>>> {
        enqueue(&self.inner, new).await
    }

    /// Begins to set a schedule: tasks that come again and again, one for each tick however many workers there are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report;
    /// # impl leasehold::Work for Report { const QUEUE: &'static str = "reports"; }
    /// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
    /// leasehold.schedule("nightly", "0 3 * * *", &Report).zone("Europe/Berlin").await?;
    /// # Ok(()) }
    /// ```
    pub fn schedule<W: Work>(&self, name: &str, cron: &str, work: &W) -> ScheduleBuilder {
        ScheduleBuilder::typed(self.inner.clone(), name, cron, work)
    }

    /// Begins to set a schedule whose tasks have no type here.
    pub fn schedule_to<Q>(&self, name: &str, cron: &str, queue: Q, payload: Payload) -> ScheduleBuilder
    where
        Q: TryInto<QueueName>,
        Q::Error: Into<Error>,
    {
        ScheduleBuilder::plain(self.inner.clone(), name, cron, queue, payload)
    }

    /// The schedules, for whoever looks after them.
    pub fn schedules(&self) -> Result<Schedules> {
        Schedules::new(self.inner.clone())
    }

    /// The tasks and queues, for whoever looks after them.
    pub fn tasks(&self) -> Result<Tasks> {
        Tasks::new(self.inner.clone())
    }

    /// Begins to start an execution of a workflow.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
    /// use leasehold::Start;
    ///
    /// let first = leasehold.workflow("deploy").key("event-17").start("v1.2").await?;
    /// let again = leasehold.workflow("deploy").key("event-17").start("v1.2").await?;
    /// let (Start::Started(first), Start::Duplicate(again)) = (first, again) else { panic!("one event, one execution") };
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

    /// The workflows and their executions, for whoever looks after them.
    pub fn workflows(&self) -> Result<Workflows> {
        Workflows::new(self.inner.clone())
    }

    /// Begins to make a worker.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.inner.clone())
    }

    /// What can be seen of a lock now; of a free one also which lease ended last.
    pub async fn status(&self, name: &LockName) -> Result<LockStatus> {
        let record = self.inner.locks().get(name).await?;
        let record = record.unwrap_or_else(|| LockRecord::new(name.clone()));
        let mut status = LockStatus::of(&record, self.now().await?);
        if record.holders.is_empty() && record.version > 0 {
            let newest = ListEvents { lock: Some(name.clone()), limit: LAST_EVENTS, ..ListEvents::default() };
            status.last = LastLease::of(self.inner.locks().history(&newest).await?.items);
        }
        Ok(status)
    }

    /// The locks of the store, a page at a time.
    pub async fn list(&self, ask: &ListLocks) -> Result<Page<LockStatus>> {
        let page = self.inner.locks().list(ask).await?;
        let now = self.now().await?;
        let items = page.items.iter().map(|record| LockStatus::of(record, now)).collect();
        Ok(Page { items, next: page.next })
    }

    /// What happened, a page at a time.
    pub async fn history(&self, ask: &ListEvents) -> Result<Page<EventView>> {
        let page = self.inner.locks().history(ask).await?;
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

    /// Like [`renew`](Self::renew), but looks at nothing but the lease: one round trip.
    pub async fn renew_lease(
        &self,
        name: &LockName,
        lease_id: LeaseId,
        token: Token,
        ttl: Option<Ttl>,
    ) -> Result<Lease> {
        let bound = self.abilities().min_ttl;
        if let Some(ttl) = ttl.filter(|ttl| *ttl < bound) {
            let wrong = format!("a ttl of {ttl} is too short for this store; {bound} is the least");
            return Err(Invalid(wrong).into());
        }
        match self.apply(name, self.inner.renewal(Renew { lease_id, token, ttl })).await? {
            Outcome::Renewed(lease) => {
                // A guard may hold it: with a shorter ttl its next renewal would come too late.
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

    /// Like [`release`](Self::release), but does not look at the lock afterwards: one round trip.
    ///
    /// If the answer of the store is lost, it is asked again: a lease that the first try has released is released.
    pub async fn release_lease(&self, name: &LockName, lease_id: LeaseId, token: Token) -> Result<()> {
        let (release, until) = (Release { lease_id, token, at_least: None }, Moment::now().plus(RETRIES));
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

    /// Asks the holders of a lock to stop when they can. They learn it at once where the store notifies them, else at their
    /// next renewal. Returns how many: none if the answer of the store was lost, and the holders that were asked have
    /// released the lock since.
    pub async fn ask_release(&self, name: &LockName, by: Holder, reason: Option<Reason>) -> Result<u32> {
        let ask = AskRelease { token: None, by, reason };
        let asked = in_doubt::ask_release(self.inner.locks(), name, ask).await?;
        self.notify_holders(name, &Outcome::Asked(asked)).await;
        Ok(asked)
    }

    /// Takes a lock from the holder with this token. If the lock has moved on since the caller looked, nothing
    /// happens. The holder may still be at work; its token is old from now on. The holder learns it at once where the store
    /// notifies it, else at its next renewal.
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

    /// Whether a token is still the newest of its lock, and its lease alive.
    pub async fn check_fence(&self, name: &LockName, token: Token) -> Result<LockStatus> {
        let status = self.status(name).await?;
        let live = status.holders.iter().any(|holder| holder.token == token && !holder.stale);
        if live { Ok(status) } else { Err(StaleToken { token, newest: status.token }.into()) }
    }

    /// Clears away what has ended, once; up to `limit` locks. Also locks of workflows whose execution is not running.
    pub async fn sweep(&self, limit: u32) -> Result<Swept> {
        let mut swept = self.inner.locks().sweep(limit).await?;
        // An execution has a lock: where tasks cannot, there are no workflows.
        if self.inner.store.tasks().is_some() && self.inner.store.abilities().tasks.locks {
            swept.leases += clear_all_stale(&self.inner).await?;
        }
        Ok(swept)
    }

    /// Forgets up to `limit` locks that nobody holds or waits for and that were not granted for `idle`; returns how many.
    /// Tokens rise all the same when such a lock is used again. One call looks at a bounded number of locks: the next one
    /// goes on from there. 0 on stores that keep every lock.
    pub async fn forget_idle(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.inner.locks().forget(idle, limit).await
    }

    /// Clears away what has ended, again and again, until the sweeper is dropped. Locks that were not granted for
    /// [`FORGET_AFTER`] are forgotten.
    pub fn sweeper(&self, every: Duration) -> Sweeper {
        self.sweeper_forgetting(every, Some(FORGET_AFTER))
    }

    /// The same, with another time after which idle locks are forgotten, or none to keep them all.
    pub fn sweeper_forgetting(&self, every: Duration, idle: Option<Ttl>) -> Sweeper {
        Sweeper::start(&self.inner, every, idle)
    }

    /// Ends leases of workers that are gone, puts in line what is due, makes tasks of the ticks of schedules and forgets what
    /// is old, again and again, until the caretaker is dropped. Every worker does so too: this is for a process that has none.
    pub fn caretaker(&self, every: Duration) -> Result<Caretaker> {
        Caretaker::start(&self.inner, every)
    }

    /// How long the store takes to look a lock up, and its time then: for a look at its health.
    pub async fn ping(&self) -> Result<(Duration, Timestamp)> {
        let probe = LockName::new("leasehold/ping")?;
        let sent = Moment::now();
        self.inner.locks().get(&probe).await?;
        let took = Moment::now().after(sent);
        Ok((took, self.now().await?))
    }

    /// Waits until everything that dropped guards have left to be done is done.
    pub async fn close(self) {
        self.inner.keeper.finish().await;
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

/// The error that an outcome means when another was hoped for.
pub(super) fn unexpected(lock: &LockName, outcome: Outcome) -> Error {
    let lock = lock.clone();
    let now = match outcome {
        Outcome::NotHeld(now) => now,
        _ => NotHeld { token: Token::default(), holders: Vec::new() },
    };
    Error::NotHeld { lock, now: Box::new(now) }
}
