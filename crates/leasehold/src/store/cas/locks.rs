//! Engine over a [`DocumentStore`] and its locks: the calls of the trait, each on the engine's own thread.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::cas_loop::CasLoop;
use super::history::Archive;
use super::lock_doc::{LocalLock, LockDoc, parse};
use super::observed_expiry::LeaseObservations;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Sweep, Swept, Timestamp, format_duration,
};
use crate::store::background::Background;
use crate::store::in_order::InOrder;
use crate::store::lock_store::page_size;
use crate::store::wake::Waiters;
use crate::store::{
    BootInstant, Capabilities, Cursor, DocumentStore, HealthCheck, ListEvents, ListLocks, LockStore, Page,
    Store, WaiterSubscription,
};

/// Engine whose locks are documents.
pub struct Cas<D> {
    locks: CasLocks<D>,
}

/// Locks of a [`Cas`] engine.
pub struct CasLocks<D> {
    cas: Arc<CasLoop<D>>,
    /// Callers of one process wait for each other: their writes do not conflict.
    local: InOrder<LockName, LocalLock>,
    background: Background,
    poll: Duration,
    /// Maximum duration of a call, whether it succeeds or fails.
    call_timeout: Duration,
}

/// Minimum timeout of a call that had to wait for earlier callers.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of a call that reads many documents.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Page size when all documents are read: the maximum of a page.
const MAX_PAGE: u32 = 1000;

impl<D: DocumentStore> Cas<D> {
    /// Returns locks over these documents.
    pub fn new(docs: D) -> Result<Self> {
        Self::with_observations(docs, LeaseObservations::of_this_process())
    }

    /// Returns locks over these documents with separate observations of leases: as if on another
    /// machine.
    pub fn with_observations(docs: D, observations: LeaseObservations) -> Result<Self> {
        let background = Background::start(&format!("leasehold-{}", docs.capabilities().engine))?;
        Ok(Self::on(background, docs, observations))
    }

    /// Returns locks over documents whose connections may already be on that thread.
    pub(crate) fn on(background: Background, docs: D, observations: LeaseObservations) -> Self {
        let (poll, call_timeout) = (docs.capabilities().poll, docs.call_timeout());
        let cas = Arc::new(CasLoop { docs, observations, waiters: Waiters::default() });
        Self { locks: CasLocks { cas, local: InOrder::default(), background, poll, call_timeout } }
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
impl<D: DocumentStore> Store for Cas<D> {
    fn capabilities(&self) -> Capabilities {
        self.locks.cas.docs.capabilities()
    }

    fn url(&self) -> String {
        self.locks.cas.docs.url()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        let cas = self.locks.cas.clone();
        self.locks.background.run(async move { cas.docs.check_health().await }).await
    }
}

impl<D: DocumentStore> CasLocks<D> {
    fn list_timeout(&self) -> Duration {
        LIST_TIMEOUT.max(2 * self.call_timeout)
    }

    async fn run_with_timeout<T: Send + 'static>(
        &self,
        timeout: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let work = async move {
            tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(timed_out(timeout)))
        };
        self.background.run(work).await
    }
}

#[async_trait]
impl<D: DocumentStore> LockStore for CasLocks<D> {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let started = BootInstant::now();
        // Before `enter` returns, nothing has been sent: a call that is dropped until then has no
        // effect. Afterwards the call runs to completion with or without its caller, and later calls
        // wait behind it.
        // A renewal must not wait for the tickets of all waiters of this process.
        let local = match op {
            LockOp::Renew(_) | LockOp::RenewLogged(_) | LockOp::Release(_) => {
                tokio::time::timeout(self.call_timeout, self.local.enter_first(name.clone())).await
            }
            _ => tokio::time::timeout(self.call_timeout, self.local.enter(name.clone())).await,
        };
        let mut local = local.map_err(|_| timed_out(self.call_timeout))?;
        let (cas, name, op) = (self.cas.clone(), name.clone(), op.clone());
        let left = started.plus(self.call_timeout).after(BootInstant::now()).max(MIN_TIMEOUT);
        self.run_with_timeout(left, async move { cas.apply(&mut local, &name, &op).await }).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let (cas, name) = (self.cas.clone(), name.clone());
        self.run_with_timeout(
            self.call_timeout,
            async move { Ok(cas.get(&name).await?.map(|doc| doc.record)) },
        )
        .await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let (cas, query) = (self.cas.clone(), query.clone());
        self.run_with_timeout(self.list_timeout(), async move { cas.list(&query).await }).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let (cas, query) = (self.cas.clone(), query.clone());
        self.run_with_timeout(self.list_timeout(), async move { cas.history(&query).await }).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let cas = self.cas.clone();
        self.run_with_timeout(self.call_timeout, async move {
            cas.docs.time().await.map(crate::store::Time::about)
        })
        .await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        // Random, so that waiters that began at the same time do not poll at the same time.
        self.cas.waiters.polling(lock, *waiter, self.poll.mul_f64(0.75 + fastrand::f64() / 4.0))
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let (mut swept, mut visited, mut after) = (Swept::default(), 0, None);
        loop {
            let cas = self.cas.clone();
            let due =
                self.run_with_timeout(self.list_timeout(), async move { cas.list_due(after).await }).await?;
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

impl<D: DocumentStore> CasLoop<D> {
    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let limit = page_size(query.limit) as usize;
        let prefix = query.prefix.as_deref().unwrap_or_default();
        let (mut after, mut items) = (query.after.clone(), Vec::new());
        loop {
            let page = self.list_documents(prefix, after, query.limit).await?;
            for doc in page.items {
                // The same time as for an operation, so that the list agrees with the actual holders.
                let now = self.now_for(&doc, None).await?;
                if query.state.is_none_or(|state| state.matches(&doc.record, now)) {
                    items.push(doc.record);
                }
                if items.len() == limit {
                    return Ok(Page::of(items, limit, |last| Cursor(last.name.as_str().to_owned())));
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(Page { items, next: None });
            }
        }
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let (archive, limit) = (Archive(&self.docs), u64::from(page_size(query.limit)));
        let Some(lock) = &query.lock else {
            let (mut docs, mut after) = (Vec::new(), None);
            loop {
                let page = self.list_documents("", after, MAX_PAGE).await?;
                docs.extend(page.items);
                after = page.next;
                if after.is_none() {
                    return archive.list_of_all(&docs, &query.span, limit).await;
                }
            }
        };
        let doc = self.get(lock).await?.unwrap_or_else(|| LockDoc::new(lock));
        archive.list_of_lock(&doc, &query.span, limit).await
    }

    /// Lists locks that have expired entries.
    async fn list_due(&self, after: Option<Cursor>) -> Result<Page<LockName>> {
        let page = self.list_documents("", after, MAX_PAGE).await?;
        let mut items = Vec::new();
        for doc in page.items {
            let now = self.now_for(&doc, None).await?;
            if doc.record.next_end().is_some_and(|end| end <= now) {
                items.push(doc.record.name);
            }
        }
        Ok(Page { items, next: page.next })
    }

    async fn list_documents(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Result<Page<LockDoc>> {
        let page = self.docs.list(prefix, after, limit).await?;
        let at = BootInstant::now();
        let docs = page.items.iter().map(|(_, doc)| parse::<LockDoc>(&doc.body));
        let mut items = docs.collect::<Result<Vec<_>>>()?;
        items.retain(|doc| doc.record.version > 0);
        for doc in &items {
            self.observations.observe(doc, at);
        }
        Ok(Page { items, next: page.next })
    }
}

fn timed_out(timeout: Duration) -> Error {
    let message = format!("the store did not answer within {}", format_duration(timeout));
    Error::store(StoreErrorKind::Unavailable, message, "try again; check the connection to the store")
}
