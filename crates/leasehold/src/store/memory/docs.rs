//! Documents: a map and a mutex. The test-only engine under the compare-and-swap loop.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::Result;
use crate::model::Ttl;
use crate::store::doc_store::is_listed;
use crate::store::lock_store::page_size;
use crate::store::{Abilities, Clock, Cursor, Doc, DocStore, Draft, Hosts, Page, PutIf, Time};

/// Documents in the memory of this process.
#[derive(Debug)]
pub struct MemoryDocs {
    clock: Clock,
    docs: Mutex<BTreeMap<String, Doc>>,
}

impl MemoryDocs {
    /// An empty store that takes its time from `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, docs: Mutex::default() }
    }
}

#[async_trait]
impl DocStore for MemoryDocs {
    fn abilities(&self) -> Abilities {
        Abilities {
            engine: "cas",
            hosts: Hosts::OneProcess,
            min_ttl: Ttl::MIN,
            poll: Duration::from_millis(100),
            wakes: false,
            sees_the_dead: false,
            lasting: false,
        }
    }

    fn url(&self) -> String {
        "cas:".to_owned()
    }

    async fn get(&self, key: &str) -> Result<Option<Doc>> {
        Ok(self.docs.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned())
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: Draft) -> Result<PutIf> {
        let mut docs = self.docs.lock().unwrap_or_else(PoisonError::into_inner);
        let current = docs.get(key);
        if current.map(|doc| doc.version) != expected {
            return Ok(PutIf::Clash(current.cloned()));
        }
        let version = expected.map_or(1, |version| version + 1);
        docs.insert(key.to_owned(), Doc { version, body: draft.body });
        Ok(PutIf::Written(version))
    }

    async fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Result<Page<(String, Doc)>> {
        let docs = self.docs.lock().unwrap_or_else(PoisonError::into_inner);
        let from = after.as_ref().map_or(prefix, |after| after.0.as_str());
        let limit = page_size(limit) as usize;
        let items: Vec<_> = docs
            .range(from.to_owned()..)
            .filter(|(key, _)| is_listed(key, prefix) && after.as_ref().is_none_or(|after| **key > after.0))
            .take(limit)
            .map(|(key, doc)| (key.clone(), doc.clone()))
            .collect();
        let next = items.last().filter(|_| items.len() == limit).map(|(key, _)| Cursor(key.clone()));
        Ok(Page { items, next })
    }

    async fn time(&self) -> Result<Time> {
        Ok(Time::Exact(self.clock.now()))
    }
}
