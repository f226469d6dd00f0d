//! Documents that all processes of a simulation share, with their earlier versions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use leasehold::store::memory::MemoryDocs;
use leasehold::store::{Clock, Document, DocumentStore, NewDocument, PutIf};
use leasehold::{BootInstant, Result};

/// Number of old versions that are kept of each document.
const MAX_VERSIONS: usize = 16;

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

fn now() -> u64 {
    BootInstant::now().as_micros()
}
