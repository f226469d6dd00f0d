//! Documents in a map with a mutex. Also the test-only engine of the compare-and-swap loop.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use crate::Result;
use crate::model::{Timestamp, Ttl};
use crate::store::document_store::is_listed;
use crate::store::lock_store::page_size;
use crate::store::support::mutex::lock;
use crate::store::{
    Capabilities, Clock, Cursor, Document, DocumentStore, Hosts, NewDocument, Page, PutIf, Time,
};

/// Documents in the memory of this process.
#[derive(Debug)]
pub struct MemoryDocs {
    clock: Clock,
    docs: Mutex<BTreeMap<String, StoredDocument>>,
}

#[derive(Debug)]
struct StoredDocument {
    doc: Document,
    expires_at: Option<Timestamp>,
}

impl MemoryDocs {
    /// Creates an empty store that takes its time from `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, docs: Mutex::default() }
    }

    /// Returns the documents that have not expired.
    fn documents(&self) -> MutexGuard<'_, BTreeMap<String, StoredDocument>> {
        let now = self.clock.now();
        let mut docs = lock(&self.docs);
        docs.retain(|_, stored| stored.expires_at.is_none_or(|expires_at| now < expires_at));
        docs
    }
}

#[async_trait]
impl DocumentStore for MemoryDocs {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            min_ttl: Ttl::MIN,
            poll: Duration::from_millis(100),
            persistent: false,
            shared_locks: true,
            queues: true,
            ..Capabilities::new("cas", Hosts::OneProcess)
        }
    }

    fn url(&self) -> String {
        "cas:".to_owned()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        Ok(self.documents().get(key).map(|stored| stored.doc.clone()))
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, document: NewDocument) -> Result<PutIf> {
        let mut docs = self.documents();
        let current = docs.get(key).map(|stored| &stored.doc);
        if current.map(|doc| doc.version) != expected {
            return Ok(PutIf::Conflict(current.cloned()));
        }
        let now = self.clock.now();
        // Derived from the clock, so that a new document never gets the version of an expired one.
        let version = expected.map_or(0, |version| version + 1).max(now.as_micros());
        let (doc, expires_at) =
            (Document { version, body: document.body }, document.keep.map(|keep| now.plus(keep)));
        docs.insert(key.to_owned(), StoredDocument { doc, expires_at });
        Ok(PutIf::Written(version))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let docs = self.documents();
        let from = after.as_ref().map_or(prefix, |after| after.0.as_str());
        let limit = page_size(limit) as usize;
        let items: Vec<_> = docs
            .range(from.to_owned()..)
            .filter(|(key, _)| is_listed(key, prefix) && after.as_ref().is_none_or(|after| **key > after.0))
            .take(limit)
            .map(|(key, stored)| (key.clone(), stored.doc.clone()))
            .collect();
        Ok(Page::of(items, limit, |(key, _)| Cursor(key.clone())))
    }

    async fn time(&self) -> Result<Time> {
        Ok(Time::Exact(self.clock.now()))
    }
}
