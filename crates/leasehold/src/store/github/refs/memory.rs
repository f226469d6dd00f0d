//! Cache of tips and commits. A commit never changes, so it is read once. A tip may be stale by the
//! time it is used: it serves for trying a write, and for recognizing a read that is older than it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::message::Note;

/// Cache of bounded size: dropping an entry only costs a request.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Tips, by the names of refs.
    tips: Kept<Seen>,
    /// Documents, by the hashes of commits.
    notes: Kept<Arc<Note>>,
}

/// Commit that a ref has pointed to.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) sha: String,
    pub(super) note: Arc<Note>,
}

/// Maximum number of entries per generation.
const MOST: usize = 512;

impl Memory {
    /// Returns the newest tip of this ref that was read.
    pub(super) fn tip(&self, name: &str) -> Option<Seen> {
        self.inner().tips.get(name).cloned()
    }

    /// Records a tip that was read, unless a newer one is known.
    pub(super) fn see(&self, name: &str, seen: &Seen) {
        let mut inner = self.inner();
        if inner.tips.get(name).is_none_or(|known| known.note.version < seen.note.version) {
            inner.tips.put(name, seen.clone());
        }
    }

    /// Records that this client has moved the ref: the new tip replaces whatever was known.
    pub(super) fn moved(&self, name: &str, seen: Seen) {
        let mut inner = self.inner();
        inner.notes.put(&seen.sha.clone(), seen.note.clone());
        inner.tips.put(name, seen);
    }

    /// Forgets a ref that does not exist any more.
    pub(super) fn forget(&self, name: &str) {
        self.inner().tips.remove(name);
    }

    pub(super) fn note(&self, sha: &str) -> Option<Arc<Note>> {
        self.inner().notes.get(sha).cloned()
    }

    pub(super) fn learn(&self, sha: &str, note: &Arc<Note>) {
        self.inner().notes.put(sha, note.clone());
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Map with two generations: entries that were not used for a long time are dropped.
#[derive(Debug)]
struct Kept<V> {
    young: HashMap<String, V>,
    old: HashMap<String, V>,
}

impl<V> Default for Kept<V> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<V> Kept<V> {
    fn get(&mut self, key: &str) -> Option<&V> {
        if let Some(value) = self.old.remove(key) {
            self.put(key, value);
        }
        self.young.get(key)
    }

    fn put(&mut self, key: &str, value: V) {
        self.old.remove(key);
        if self.young.len() >= MOST {
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

    fn seen(version: u64) -> Seen {
        let note = Note { key: "k".to_owned(), version, until: None, write: 0, body: String::new() };
        Seen { sha: version.to_string(), note: Arc::new(note) }
    }

    #[test]
    fn a_tip_that_is_older_than_one_that_was_seen_is_not_remembered_unless_it_is_ours() {
        let memory = Memory::default();
        memory.see("r", &seen(5));
        memory.see("r", &seen(4));
        assert_eq!(memory.tip("r").unwrap().sha, "5");
        memory.moved("r", seen(3));
        assert_eq!(memory.tip("r").unwrap().sha, "3");
        memory.forget("r");
        assert!(memory.tip("r").is_none());
    }

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let memory = Memory::default();
        memory.learn("used", &seen(1).note);
        for number in 0..3 * MOST {
            memory.learn(&number.to_string(), &seen(2).note);
            assert!(memory.note("used").is_some());
        }
        assert!(memory.note("0").is_none());
        let inner = memory.inner();
        assert!(inner.notes.young.len() + inner.notes.old.len() <= 2 * MOST);
    }
}
