//! Store with injected faults, through the public trait: lost requests, lost answers, delays,
//! missing answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp, Ttl};
use crate::model::{Settle, ValidationError};
use crate::store::{
    Capabilities, DocumentStore, ListEvents, ListLocks, LockStore, Page, Peek, Store, TaskStore,
    WaiterSubscription,
};

/// Fault of one call of [`LockStore::apply`], or of a [`TaskStore`].
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
    /// The code of the store panics.
    Panic,
    /// The call succeeds, but blocks the caller's thread for this time, as a slow disk does.
    Block(Duration),
}

/// Store with faults: the planned ones first, one per call, then the lasting one.
pub struct FaultyStore {
    pub(super) store: Arc<dyn Store>,
    planned: Mutex<VecDeque<Fault>>,
    lasting: Mutex<Fault>,
    log: Mutex<Vec<LockOp>>,
    most_settled: Mutex<Option<usize>>,
}

impl FaultyStore {
    /// Creates a store without faults.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let (planned, lasting, log) = (Mutex::default(), Mutex::new(Fault::None), Mutex::default());
        Arc::new(Self { store, planned, lasting, log, most_settled: Mutex::default() })
    }

    /// Plans faults for the next calls.
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// Sets the fault of every call that has no planned fault.
    pub fn from_now_on(&self, fault: Fault) {
        *self.lasting.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Permanently refuses settlements whose results have more bytes than this in total.
    pub fn settles_at_most(&self, bytes: usize) {
        *self.most_settled.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }

    pub(super) fn check_settled(&self, settle: &[Settle]) -> Result<()> {
        let most = *self.most_settled.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: usize = settle.iter().map(|settle| settle.verdict.bytes()).sum();
        if most.is_some_and(|most| bytes > most) {
            return Err(ValidationError::other(format!("a call of {bytes} bytes is too large")).into());
        }
        Ok(())
    }

    /// Returns every lock operation that was sent so far.
    pub fn sent(&self) -> Vec<LockOp> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn next_fault(&self) -> Fault {
        let planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        planned.unwrap_or_else(|| *self.lasting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn lost() -> Error {
        Error::store(StoreErrorKind::Unavailable, "the connection was cut", "nothing: this is a test")
    }

    pub(super) fn refused() -> Error {
        Error::store(StoreErrorKind::Broken, "the store is gone", "nothing: this is a test")
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
        match self.next_fault() {
            Fault::None => self.store.locks().apply(name, op).await,
            Fault::LoseRequest => Err(Self::lost()),
            Fault::LoseAnswer => {
                self.store.locks().apply(name, op).await?;
                Err(Self::lost())
            }
            Fault::Delay(delay) => {
                let outcome = self.store.locks().apply(name, op).await;
                tokio::time::sleep(delay).await;
                outcome
            }
            Fault::Hang => {
                self.store.locks().apply(name, op).await?;
                std::future::pending().await
            }
            Fault::Refuse => Err(Self::refused()),
            Fault::Panic => panic!("a panic that a test wanted"),
            Fault::Block(time) => {
                std::thread::sleep(time);
                self.store.locks().apply(name, op).await
            }
        }
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.store.locks().get(name).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.store.locks().peek(name, waiter).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.store.locks().list(query).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.store.locks().history(query).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store.locks().now().await
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.store.locks().changes(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.store.locks().sweep(limit).await
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.store.locks().forget(idle, limit).await
    }
}
