//! Store that wraps another store, and its locks.

use std::sync::Arc;

use async_trait::async_trait;
use tracing::Instrument;

use super::counters::Counters;
use super::op::Op;
use super::snapshot::MetricsSnapshot;
use crate::Result;
use crate::model::{
    Event, EventKind, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp, Ttl, WorkerId,
};
use crate::store::{
    BootInstant, Capabilities, DocumentStore, HealthCheck, ListEvents, ListLocks, LockStore, OnNotice, Page,
    Peek, RateLimit, Recipient, Store, Subscription, TaskStore, WaiterSubscription,
};

/// Maximum number of possible takeovers that one snapshot looks up.
const LOOK_UPS: usize = 100;
/// Maximum number of events of a lock that are searched for one takeover.
const EVENTS: u32 = 50;

/// Store that counts and times the calls on another store.
pub struct InstrumentedStore {
    pub(super) store: Arc<dyn Store>,
    pub(super) counters: Counters,
}

impl InstrumentedStore {
    /// Wraps a store. Only calls through the wrapper are counted.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, counters: Counters::new() }
    }

    /// Returns the wrapped store: direct calls on it are not counted.
    pub fn below(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the current numbers. Looks up in the history how leases ended that other callers may
    /// have taken over, which costs a few reads of the store; leases whose history cannot be read are
    /// omitted.
    pub async fn read(&self) -> MetricsSnapshot {
        for takeover in self.counters.take_possible_takeovers().into_iter().take(LOOK_UPS) {
            let query = ListEvents { lock: Some(takeover.lock), limit: EVENTS, ..ListEvents::default() };
            let Ok(events) = self.store.locks().history(&query).await else { break };
            let how = events.items.iter().find(|event| {
                event.lease_id == takeover.lease_id
                    && (takeover.from..=takeover.until).contains(&event.at)
                    && matches!(event.kind, EventKind::Expired | EventKind::Stolen)
            });
            if let Some(event) = how {
                self.counters.record_takeover(event.kind);
            }
        }
        MetricsSnapshot { budget: self.store.budget(), ..self.counters.read() }
    }

    /// Times a call in its own span.
    pub(super) async fn timed<T>(&self, op: Op, call: impl Future<Output = Result<T>>) -> Result<T> {
        let span = tracing::debug_span!("store", op = op.name());
        let began = BootInstant::now();
        let answer = call.instrument(span).await;
        self.counters.record_call(op, began, &answer);
        answer
    }
}

#[async_trait]
impl Store for InstrumentedStore {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn url(&self) -> String {
        self.store.url()
    }

    fn new_worker_id(&self) -> WorkerId {
        self.store.new_worker_id()
    }

    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.store.subscribe(to, on_notice)
    }

    async fn notify(&self, to: &[Recipient]) {
        self.store.notify(to).await;
    }

    fn locks(&self) -> &dyn LockStore {
        self
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        self.store.tasks().map(|_| self as &dyn TaskStore)
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        self.store.documents().map(|_| self as &dyn DocumentStore)
    }

    fn budget(&self) -> Option<RateLimit> {
        self.store.budget()
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        self.store.check_health().await
    }
}

#[async_trait]
impl LockStore for InstrumentedStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let kind = Op::from(op);
        let span = tracing::debug_span!("store", op = kind.name(), lock = %name);
        let began = BootInstant::now();
        let answer = self.store.locks().apply(name, op).instrument(span).await;
        self.counters.record_call(kind, began, &answer);
        self.counters.record_outcome(name, op, began, &answer);
        answer
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.timed(Op::LockGet, self.store.locks().get(name)).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.timed(Op::LockPeek, self.store.locks().peek(name, waiter)).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.timed(Op::LockList, self.store.locks().list(query)).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.timed(Op::LockHistory, self.store.locks().history(query)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.timed(Op::LockNow, self.store.locks().now()).await
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.store.locks().changes(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let swept = self.timed(Op::LockSweep, self.store.locks().sweep(limit)).await?;
        self.counters.record_sweep(swept);
        Ok(swept)
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.timed(Op::LockForget, self.store.locks().forget(idle, limit)).await
    }
}
