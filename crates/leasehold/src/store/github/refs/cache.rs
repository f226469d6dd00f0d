//! Cache of tips and commits. A commit never changes, so it is read once. A tip may be stale by the
//! time it is used: it serves for trying a write, and for recognizing a read that is older than it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::commit_message::CommitDocument;
use crate::store::support::mutex::lock;

/// Cache of bounded size: dropping an entry only costs a request.
#[derive(Debug, Default)]
pub(super) struct RefCache(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Tips, by the names of refs.
    tips: GenerationMap<TipCommit>,
    /// Documents, by the hashes of commits.
    documents: GenerationMap<Arc<CommitDocument>>,
}

#[derive(Debug, Clone)]
pub(super) struct TipCommit {
    pub(super) sha: String,
    pub(super) document: Arc<CommitDocument>,
}

/// Maximum number of entries per generation.
const MAX_ENTRIES: usize = 512;

impl RefCache {
    pub(super) fn tip(&self, name: &str) -> Option<TipCommit> {
        lock(&self.0).tips.get(name).cloned()
    }

    /// Records a tip that was read, unless a newer one is known.
    pub(super) fn observe_tip(&self, name: &str, tip: &TipCommit) {
        let mut inner = lock(&self.0);
        if inner.tips.get(name).is_none_or(|known| known.document.version < tip.document.version) {
            inner.tips.put(name, tip.clone());
        }
    }

    /// Records that this client has moved the ref: the new tip replaces whatever was known.
    pub(super) fn set_tip(&self, name: &str, tip: TipCommit) {
        let mut inner = lock(&self.0);
        inner.documents.put(&tip.sha.clone(), tip.document.clone());
        inner.tips.put(name, tip);
    }

    /// Forgets a ref that does not exist any more.
    pub(super) fn forget(&self, name: &str) {
        lock(&self.0).tips.remove(name);
    }

    pub(super) fn document(&self, sha: &str) -> Option<Arc<CommitDocument>> {
        lock(&self.0).documents.get(sha).cloned()
    }

    pub(super) fn insert_document(&self, sha: &str, document: &Arc<CommitDocument>) {
        lock(&self.0).documents.put(sha, document.clone());
    }
}

/// Map with two generations: entries that were not used for a long time are dropped.
#[derive(Debug)]
struct GenerationMap<V> {
    young: HashMap<String, V>,
    old: HashMap<String, V>,
}

impl<V> Default for GenerationMap<V> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<V> GenerationMap<V> {
    fn get(&mut self, key: &str) -> Option<&V> {
        if let Some(value) = self.old.remove(key) {
            self.put(key, value);
        }
        self.young.get(key)
    }

    fn put(&mut self, key: &str, value: V) {
        self.old.remove(key);
        if self.young.len() >= MAX_ENTRIES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key.to_owned(), value);
    }

    fn remove(&mut self, key: &str) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip(version: u64) -> TipCommit {
        let document =
            CommitDocument { key: "k".to_owned(), version, expires_at: None, write: 0, body: String::new() };
        TipCommit { sha: version.to_string(), document: Arc::new(document) }
    }

    #[test]
    fn an_older_tip_replaces_a_newer_one_only_if_this_client_wrote_it() {
        let cache = RefCache::default();
        cache.observe_tip("r", &tip(5));
        cache.observe_tip("r", &tip(4));
        assert_eq!(cache.tip("r").unwrap().sha, "5");
        cache.set_tip("r", tip(3));
        assert_eq!(cache.tip("r").unwrap().sha, "3");
        cache.forget("r");
        assert!(cache.tip("r").is_none());
    }

    #[test]
    fn used_entries_stay_and_unused_ones_are_dropped() {
        let cache = RefCache::default();
        cache.insert_document("used", &tip(1).document);
        for number in 0..3 * MAX_ENTRIES {
            cache.insert_document(&number.to_string(), &tip(2).document);
            assert!(cache.document("used").is_some());
        }
        assert!(cache.document("0").is_none());
        let inner = lock(&cache.0);
        assert!(inner.documents.young.len() + inner.documents.old.len() <= 2 * MAX_ENTRIES);
    }
}
