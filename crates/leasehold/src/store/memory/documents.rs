//! Documents in a map with a mutex. Also the test-only engine of the compare-and-swap loop.

use std::collections::{BTreeMap, BTreeSet};
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
    docs: Mutex<Documents>,
}

#[derive(Debug, Default)]
struct Documents {
    by_key: BTreeMap<String, StoredDocument>,
    /// Keys of the documents that expire, in the order of their expiry.
    expiring: BTreeSet<(Timestamp, String)>,
}

impl Documents {
    fn remove_expired(&mut self, now: Timestamp) {
        while self.expiring.first().is_some_and(|(expires_at, _)| *expires_at <= now) {
            let expired = self.expiring.pop_first().and_then(|(_, key)| self.by_key.remove(&key));
            debug_assert!(expired.is_some(), "a document that expires is stored");
        }
    }

    fn insert(&mut self, key: &str, stored: StoredDocument) {
        let expires_at = stored.expires_at;
        let before = self.by_key.insert(key.to_owned(), stored);
        if let Some(expired_at) = before.and_then(|before| before.expires_at) {
            self.expiring.remove(&(expired_at, key.to_owned()));
        }
        self.expiring.extend(expires_at.map(|expires_at| (expires_at, key.to_owned())));
    }
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
    fn documents(&self) -> MutexGuard<'_, Documents> {
        let now = self.clock.now();
        let mut docs = lock(&self.docs);
        docs.remove_expired(now);
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
        Ok(self.documents().by_key.get(key).map(|stored| stored.doc.clone()))
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, document: NewDocument) -> Result<PutIf> {
        let mut docs = self.documents();
        let current = docs.by_key.get(key).map(|stored| &stored.doc);
        if current.map(|doc| doc.version) != expected {
            return Ok(PutIf::Conflict(current.cloned()));
        }
        let now = self.clock.now();
        // Derived from the clock, so that a new document never gets the version of an expired one.
        let version = expected.map_or(0, |version| version + 1).max(now.as_micros());
        let (doc, expires_at) =
            (Document { version, body: document.body }, document.keep.map(|keep| now.plus(keep)));
        docs.insert(key, StoredDocument { doc, expires_at });
        Ok(PutIf::Written(version))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let docs = self.documents();
        // Reserved keys sort before all others; there may be many.
        let first = if prefix.is_empty() { "\u{2}" } else { prefix };
        let from = after.as_ref().map_or(first, |after| after.0.as_str().max(first));
        let limit = page_size(limit) as usize;
        let items: Vec<_> = docs
            .by_key
            .range(from.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
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
