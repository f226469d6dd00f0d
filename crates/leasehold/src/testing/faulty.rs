//! A store that fails on purpose, through the public trait: lost requests, lost answers, delays, silence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, Result, Trouble};
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp, Ttl};
use crate::model::{Invalid, Settle};
use crate::store::{
    Abilities, Changes, DocStore, ListEvents, ListLocks, LockStore, Page, Peek, Store, TaskStore,
};

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
    /// It never arrives, and the store says that no later try can succeed.
    Refuse,
    /// The code of the store panics.
    Panic,
    /// It goes through, but blocks the thread of its caller for so long, as a slow disk does.
    Block(Duration),
}

/// A store with faults: the planned ones first, one per call, then the lasting one.
pub struct FaultyStore {
    pub(super) store: Arc<dyn Store>,
    planned: Mutex<VecDeque<Fault>>,
    lasting: Mutex<Fault>,
    log: Mutex<Vec<LockOp>>,
    most_settled: Mutex<Option<usize>>,
}

impl FaultyStore {
    /// A store without faults yet.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let (planned, lasting, log) = (Mutex::default(), Mutex::new(Fault::None), Mutex::default());
        Arc::new(Self { store, planned, lasting, log, most_settled: Mutex::default() })
    }

    /// Plans faults for the next calls.
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// What happens to every call that has no fault planned for it.
    pub fn from_now_on(&self, fault: Fault) {
        *self.lasting.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Refuses, for good, settlements whose results have more bytes than this together.
    pub fn settles_at_most(&self, bytes: usize) {
        *self.most_settled.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }

    pub(super) fn check_settled(&self, settle: &[Settle]) -> Result<()> {
        let most = *self.most_settled.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: usize = settle.iter().map(|settle| settle.verdict.bytes()).sum();
        if most.is_some_and(|most| bytes > most) {
            return Err(Invalid(format!("a call of {bytes} bytes is too large")).into());
        }
        Ok(())
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

    pub(super) fn refused() -> Error {
        Error::store(Trouble::Broken, "the store is gone", "nothing: this is a test")
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

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        self.store.locks().list(ask).await
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        self.store.locks().history(ask).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store.locks().now().await
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> Changes {
        self.store.locks().changes(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.store.locks().sweep(limit).await
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.store.locks().forget(idle, limit).await
    }
}
