//! Engine over a [`DocStore`] and its locks: the calls of the trait, each on the engine's own thread.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::history::Archive;
use super::lanes::Lanes;
use super::lock_doc::{LockDoc, parse};
use super::sights::LeaseObservations;
use super::swap::Swap;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Sweep, Swept, Timestamp, format_duration,
};
use crate::store::background::Background;
use crate::store::lock_store::page_size;
use crate::store::wake::Waiters;
use crate::store::{
    BootInstant, Capabilities, Cursor, DocStore, HealthCheck, ListEvents, ListLocks, LockStore, Page, Store,
    WaiterSubscription,
};

/// Engine whose locks are documents.
pub struct Cas<D> {
    locks: CasLocks<D>,
}

/// Locks of a [`Cas`] engine.
pub struct CasLocks<D> {
    swap: Arc<Swap<D>>,
    lanes: Lanes,
    background: Background,
    poll: Duration,
    /// Maximum duration of a call, whether it succeeds or fails.
    patience: Duration,
}

/// Minimum time that is left for a call that had to wait for earlier callers.
const LEAST: Duration = Duration::from_secs(1);
/// Timeout of a call that reads many documents.
const LONG: Duration = Duration::from_secs(30);
/// Page size when all documents are read: the maximum of a page.
const ALL: u32 = 1000;

impl<D: DocStore> Cas<D> {
    /// Returns locks over these documents.
    pub fn new(docs: D) -> Result<Self> {
        Self::with_sights(docs, LeaseObservations::of_this_process())
    }

    /// Returns locks over these documents with separate observations of leases: as if on another
    /// machine.
    pub fn with_sights(docs: D, sights: LeaseObservations) -> Result<Self> {
        let background = Background::start(&format!("leasehold-{}", docs.capabilities().engine))?;
        Ok(Self::on(background, docs, sights))
    }

    /// Returns locks over documents whose connections may already be on that thread.
    pub(crate) fn on(background: Background, docs: D, sights: LeaseObservations) -> Self {
        let (poll, patience) = (docs.capabilities().poll, docs.patience());
        let swap = Arc::new(Swap { docs, sights, waiters: Waiters::default() });
        Self { locks: CasLocks { swap, lanes: Lanes::default(), background, poll, patience } }
    }

    /// Runs `work` on the engine's own thread, to completion even if the caller drops the returned
    /// future.
    #[cfg(feature = "github")]
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.locks.background.run(work).await
    }
}

#[async_trait]
impl<D: DocStore> Store for Cas<D> {
    fn capabilities(&self) -> Capabilities {
        self.locks.swap.docs.capabilities()
    }

    fn url(&self) -> String {
        self.locks.swap.docs.url()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        let swap = self.locks.swap.clone();
        self.locks.background.run(async move { swap.docs.check_health().await }).await
    }
}

impl<D: DocStore> CasLocks<D> {
    fn long(&self) -> Duration {
        LONG.max(2 * self.patience)
    }

    async fn timely<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let work =
            async move { tokio::time::timeout(time, work).await.unwrap_or_else(|_| Err(too_slow(time))) };
        self.background.run(work).await
    }
}

#[async_trait]
impl<D: DocStore> LockStore for CasLocks<D> {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let asked = BootInstant::now();
        // Before the lane is entered, nothing has been sent: a call that is dropped here has no
        // effect. Afterwards the call runs to completion with or without its caller, and later calls
        // wait behind it.
        let lane = tokio::time::timeout(self.patience, self.lanes.enter(name)).await;
        let mut lane = lane.map_err(|_| too_slow(self.patience))?;
        let (swap, name, op) = (self.swap.clone(), name.clone(), op.clone());
        let left = asked.plus(self.patience).after(BootInstant::now()).max(LEAST);
        self.timely(left, async move { swap.apply(&mut lane, &name, &op).await }).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let (swap, name) = (self.swap.clone(), name.clone());
        self.timely(self.patience, async move { Ok(swap.look(&name).await?.map(|doc| doc.record)) }).await
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        let (swap, ask) = (self.swap.clone(), ask.clone());
        self.timely(self.long(), async move { swap.list(&ask).await }).await
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        let (swap, ask) = (self.swap.clone(), ask.clone());
        self.timely(self.long(), async move { swap.history(&ask).await }).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let swap = self.swap.clone();
        self.timely(self.patience, async move { swap.docs.time().await.map(crate::store::Time::about) }).await
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        // Random, so that waiters that began at the same time do not poll at the same time.
        self.swap.waiters.polling(lock, *waiter, self.poll.mul_f64(0.75 + fastrand::f64() / 4.0))
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let (mut swept, mut visited, mut after) = (Swept::default(), 0, None);
        loop {
            let swap = self.swap.clone();
            let due = self.timely(self.long(), async move { swap.due(after).await }).await?;
            for name in due.items {
                if visited == limit {
                    return Ok(swept);
                }
                visited += 1;
                let sweep = LockOp::Sweep(Sweep::default());
                if let Outcome::Swept(one) = self.apply(&name, &sweep).await? {
                    swept += one;
                }
            }
            after = due.next;
            if after.is_none() {
                return Ok(swept);
            }
        }
    }
}

impl<D: DocStore> Swap<D> {
    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        let limit = page_size(ask.limit) as usize;
        let prefix = ask.prefix.as_deref().unwrap_or_default();
        let (mut after, mut items) = (ask.after.clone(), Vec::new());
        loop {
            let page = self.page(prefix, after, ask.limit).await?;
            for doc in page.items {
                // The same time as for an operation, so that the list agrees with the actual holders.
                let now = self.now_for(&doc, None).await?;
                if ask.state.is_none_or(|state| state.matches(&doc.record, now)) {
                    items.push(doc.record);
                }
                if items.len() == limit {
                    let next = items.last().map(|last| Cursor(last.name.as_str().to_owned()));
                    return Ok(Page { items, next });
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(Page { items, next: None });
            }
        }
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        let (archive, limit) = (Archive(&self.docs), u64::from(page_size(ask.limit)));
        let Some(lock) = &ask.lock else {
            let (mut docs, mut after) = (Vec::new(), None);
            loop {
                let page = self.page("", after, ALL).await?;
                docs.extend(page.items);
                after = page.next;
                if after.is_none() {
                    return archive.of_all(&docs, &ask.span, limit).await;
                }
            }
        };
        let doc = self.look(lock).await?.unwrap_or_else(|| LockDoc::new(lock));
        archive.of_lock(&doc, &ask.span, limit).await
    }

    /// Lists locks that have expired entries.
    async fn due(&self, after: Option<Cursor>) -> Result<Page<LockName>> {
        let page = self.page("", after, ALL).await?;
        let mut items = Vec::new();
        for doc in page.items {
            let now = self.now_for(&doc, None).await?;
            if doc.record.next_end().is_some_and(|end| end <= now) {
                items.push(doc.record.name);
            }
        }
        Ok(Page { items, next: page.next })
    }

    async fn page(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Result<Page<LockDoc>> {
        let page = self.docs.list(prefix, after, limit).await?;
        let at = BootInstant::now();
        let docs = page.items.iter().map(|(_, doc)| parse::<LockDoc>(&doc.body));
        let mut items = docs.collect::<Result<Vec<_>>>()?;
        items.retain(|doc| doc.record.version > 0);
        for doc in &items {
            self.sights.see(doc, at);
        }
        Ok(Page { items, next: page.next })
    }
}

fn too_slow(time: Duration) -> Error {
    let message = format!("the store did not answer within {}", format_duration(time));
    Error::store(
        StoreErrorKind::Unavailable,
        message,
        "try again; see what it is busy with: leasehold doctor",
    )
}
