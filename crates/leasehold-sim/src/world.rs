//! What all processes of a simulation share: the engine, the documents, the resource behind the locks, the
//! history, and what the audit knows about the operations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::model::{Fence, LeaseId, LockName, TaskId, Token};
use leasehold::store::memory::{MemoryDocs, MemoryStore};
use leasehold::store::{Clock, Document, DocumentStore, NewDocument, PutIf, Store};
use leasehold::{BootInstant, Result};
use leasehold_torture::history::{Event, Record};

use crate::plan::{EngineKind, Plan};

/// Number of old versions that are kept of each document.
const MAX_VERSIONS: usize = 16;

/// Number of an operation and of its process.
pub(crate) type OpId = (u32, u32);

/// World of a simulation.
pub(crate) struct World {
    pub(crate) plan: Plan,
    /// Engine `memory:` without faults. Has the locks too, unless they are documents.
    pub(crate) engine: Arc<MemoryStore>,
    pub(crate) documents: Arc<SharedDocuments>,
    /// Difference between the time of the engine and the boot clock, in microseconds.
    pub(crate) offset: u64,
    draining: AtomicBool,
    state: Mutex<State>,
}

/// What the audit knows.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) records: Vec<Record>,
    pub(crate) violations: Vec<Finding>,
    pub(crate) holds: BTreeMap<OpId, Hold>,
    /// Times at which requests for locks ended.
    pub(crate) ended: BTreeMap<OpId, u64>,
    /// Number of renewals of a lease since the last one that succeeded.
    pub(crate) renewals: BTreeMap<LeaseId, u32>,
    /// Requests that wait, and their locks.
    pub(crate) waiting: BTreeMap<OpId, String>,
    /// Times since which a lock has no lease.
    pub(crate) free_since: BTreeMap<String, u64>,
    pub(crate) forced: BTreeMap<(String, u64), u64>,
    /// Requests that reached the engine after their caller had given up.
    pub(crate) late: BTreeSet<LeaseId>,
    pub(crate) attempts: BTreeMap<(TaskId, Token), Attempt>,
    /// Attempts that have ended and are not settled.
    pub(crate) unsettled: BTreeSet<(TaskId, Token)>,
    values: BTreeMap<String, (Fence, u64)>,
    last_op: BTreeMap<u32, u32>,
}

/// Lease that a process believes to hold.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) lock: String,
    pub(crate) lease: LeaseId,
    pub(crate) token: Token,
    pub(crate) until: u64,
    /// Time of the grant, or of the last renewal that the holder saw.
    pub(crate) extended: u64,
}

/// Attempt at a task, as its handler and the engine see it.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) op: OpId,
    /// End of the handler, and whether it succeeded.
    pub(crate) ended: Option<(u64, bool)>,
    /// Whether a settlement has reached the engine.
    pub(crate) is_settled: bool,
}

/// Violation that the audit has found.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) at: u64,
    pub(crate) property: &'static str,
    pub(crate) message: String,
    pub(crate) ops: Vec<OpId>,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Arc<Self> {
        let clock = Clock::system();
        let offset = clock.now().as_micros() - now();
        let documents = Arc::new(SharedDocuments::new(clock.clone()));
        // Engines differ in how often workers poll them; one with few requests is polled less often.
        let poll = (plan.idle / 60).clamp(Duration::from_secs(1), Duration::from_secs(10));
        let engine = Arc::new(MemoryStore::with_clock(clock).polled_every(poll));
        let (draining, state) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { plan, engine, documents, offset, draining, state })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no process starts anything new, and no faults are injected.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.record(0, Event::Draining);
    }

    /// Whether the state of the locks can be read from the engine, and its times can be compared with
    /// the boot clock.
    pub(crate) fn has_exact_locks(&self) -> bool {
        self.plan.engine == EngineKind::Memory
    }

    pub(crate) fn record(&self, process: u32, event: Event) {
        let at = now();
        self.state().records.push(Record { at, process, event });
    }

    /// Returns the number of a new operation of a process.
    pub(crate) fn new_op(&self, process: u32) -> u32 {
        let mut state = self.state();
        let last = state.last_op.entry(process).or_default();
        *last += 1;
        *last
    }

    pub(crate) fn violation(&self, property: &'static str, ops: Vec<OpId>, message: String) {
        let at = now();
        self.state().violations.push(Finding { at, property, message, ops });
    }

    pub(crate) fn has_violations(&self) -> bool {
        !self.state().violations.is_empty()
    }

    /// Returns the lease that the engine has for a held lock, if it is live.
    pub(crate) async fn live_lease(
        &self,
        lock: &str,
        id: LeaseId,
        token: Token,
    ) -> Option<leasehold::model::Lease> {
        let name = LockName::new(lock).ok()?;
        let record = self.engine.locks().get(&name).await.ok()??;
        let at = self.engine.locks().now().await.ok()?;
        let lease = record.live(at).find(|lease| lease.request.lease_id == id && lease.token == token);
        lease.cloned()
    }

    /// Reads the number of a lock, or writes the one that follows `seen`. Returns `None` if the token is
    /// stale.
    pub(crate) fn sink(
        &self,
        (worker, op): OpId,
        lock: &str,
        token: Token,
        seen: Option<u64>,
    ) -> Option<u64> {
        let at = now();
        let mut state = self.state();
        let (fence, value) = state.values.entry(lock.to_owned()).or_default();
        let accepted = fence.admit(token).is_ok();
        if accepted && let Some(seen) = seen {
            *value = seen + 1;
        }
        let value = *value;
        let (lock, token) = (lock.to_owned(), token.get());
        let event = Event::Sink { worker, op, lock, token, seen, value, accepted };
        state.records.push(Record { at, process: 0, event });
        accepted.then_some(value)
    }
}

/// Documents that all processes share, with their earlier versions.
pub(crate) struct SharedDocuments {
    pub(crate) docs: MemoryDocs,
    pub(crate) clock: Clock,
    earlier: Mutex<BTreeMap<String, VecDeque<Earlier>>>,
}

/// Version of a document that was replaced at this time.
struct Earlier {
    replaced_at: u64,
    document: Option<Document>,
}

impl SharedDocuments {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { docs: MemoryDocs::with_clock(clock.clone()), clock, earlier: Mutex::default() }
    }

    pub(crate) async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let before = self.docs.get(key).await?;
        let put = self.docs.put_if(key, expected, draft).await?;
        if matches!(put, PutIf::Written(_)) {
            let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
            let versions = earlier.entry(key.to_owned()).or_default();
            versions.push_back(Earlier { replaced_at: now(), document: before });
            if versions.len() > MAX_VERSIONS {
                versions.pop_front();
            }
        }
        Ok(put)
    }

    /// Returns the document as it was this long ago, in microseconds.
    pub(crate) async fn get(&self, key: &str, age: u64) -> Result<Option<Document>> {
        if age > 0 {
            let at = now() - age;
            let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
            let versions = earlier.get(key).into_iter().flatten();
            if let Some(found) = versions.into_iter().find(|version| version.replaced_at > at) {
                return Ok(found.document.clone());
            }
        }
        self.docs.get(key).await
    }
}

/// Returns the boot clock in microseconds.
pub(crate) fn now() -> u64 {
    BootInstant::now().as_micros()
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    micros(duration) / 1000
}

/// Returns the text of the holder of an operation.
pub(crate) fn holder_of_op((process, op): OpId) -> String {
    format!("process-{process}/{op}")
}

/// Returns the operation of a holder.
pub(crate) fn op_of_holder(holder: &str) -> Option<OpId> {
    let (process, op) = holder.strip_prefix("process-")?.split_once('/')?;
    Some((process.parse().ok()?, op.parse().ok()?))
}
