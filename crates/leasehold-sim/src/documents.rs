//! Documents as a process reaches them on an engine that can only compare and swap: reads may be old,
//! writes may arrive late, and the clock of the process may be wrong.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::model::Timestamp;
use leasehold::store::{Capabilities, Cursor, Document, DocumentStore, NewDocument, Page, PutIf, Time};

use crate::plan::EngineKind;
use crate::process::Process;
use crate::world::SharedDocuments;

/// Maximum age of what a read returns, in microseconds.
const MAX_AGE: u64 = 3_000_000;

/// Documents as one process reaches them.
pub(crate) struct ProcessDocuments {
    process: Arc<Process>,
    shared: Arc<SharedDocuments>,
    has_clock: bool,
    /// Difference of the clock of this process from the right time, in microseconds.
    skew: i64,
}

impl ProcessDocuments {
    pub(crate) fn new(process: Arc<Process>) -> Self {
        let shared = process.world.documents.clone();
        let has_clock = process.world.plan.engine == EngineKind::Cas;
        let skew = process.rng().i64(-600_000_000..600_000_000);
        Self { process, shared, has_clock, skew }
    }
}

#[async_trait]
impl DocumentStore for ProcessDocuments {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.shared.docs.capabilities();
        capabilities.poll = Duration::from_secs(3);
        capabilities
    }

    fn url(&self) -> String {
        "simulated:".to_owned()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let is_old = !self.has_clock && self.process.rng().u8(0..4) == 0;
        let age = if is_old { self.process.rng().u64(0..MAX_AGE) } else { 0 };
        let (shared, key) = (self.shared.clone(), key.to_owned());
        self.process.call(async move { shared.get(&key, age).await }).await
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let (shared, key) = (self.shared.clone(), key.to_owned());
        self.process.call(async move { shared.put_if(&key, expected, draft).await }).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let (shared, prefix) = (self.shared.clone(), prefix.to_owned());
        self.process.call(async move { shared.docs.list(&prefix, after, limit).await }).await
    }

    async fn time(&self) -> Result<Time> {
        let exact = self.shared.clock.now();
        if self.has_clock {
            return Ok(Time::Exact(exact));
        }
        let estimate = Timestamp::from_micros(exact.as_micros().saturating_add_signed(self.skew));
        Ok(Time::Observed { estimate, lower_bound: None })
    }

    fn batch(&self) -> u64 {
        8
    }

    fn reads_may_be_old(&self) -> bool {
        !self.has_clock
    }
}
