//! A store that fails on purpose, through the public trait: lost requests, lost answers, delays, silence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, Result, Trouble};
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp};
use crate::store::{Abilities, Changes, DocStore, ListEvents, ListLocks, LockStore, Page, Store, TaskStore};

/// What happens to one call of [`LockStore::apply`], or of a [`TaskStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It goes through.
    None,
    /// It never arrives.
    LoseRequest,
    /// It takes effect, but the answer is lost.
    LoseAnswer,
    /// The answer comes late.
    Delay(Duration),
    /// It takes effect, but there is no answer at all.
    Hang,
}

/// A store with faults: the planned ones first, one per call, then the lasting one.
pub struct FaultyStore {
    pub(super) store: Arc<dyn Store>,
    planned: Mutex<VecDeque<Fault>>,
    lasting: Mutex<Fault>,
    log: Mutex<Vec<LockOp>>,
}

impl FaultyStore {
    /// A store without faults yet.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let (planned, lasting, log) = (Mutex::default(), Mutex::new(Fault::None), Mutex::default());
        Arc::new(Self { store, planned, lasting, log })
    }

    /// Plans faults for the next calls.
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// What happens to every call that has no fault planned for it.
    pub fn from_now_on(&self, fault: Fault) {
        *self.lasting.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Every operation that was sent so far.
    pub fn sent(&self) -> Vec<LockOp> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn next_fault(&self) -> Fault {
        let planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        planned.unwrap_or_else(|| *self.lasting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn lost() -> Error {
        Error::store(Trouble::Unavailable, "the connection was cut", "nothing: this is a test")
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn abilities(&self) -> Abilities {
        self.store.abilities()
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

    fn docs(&self) -> Option<&dyn DocStore> {
        self.store.docs()
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
        }
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.store.locks().get(name).await
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        self.store.locks().list(ask).await
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        self.store.locks().history(ask).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store.locks().now().await
    }

    fn changes(&self, waiter: &LeaseId) -> Changes {
        self.store.locks().changes(waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.store.locks().sweep(limit).await
    }
}
