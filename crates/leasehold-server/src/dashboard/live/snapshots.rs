//! Data of pages that several tabs show at the same time: they share one read of the store.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::BootInstant;

use crate::problem::ApiResult;
use crate::sync::locked;

/// Maximum number of pages whose data are kept, so that requests with invented filters cannot fill the
/// memory.
const MAX_ENTRIES: usize = 500;

/// Last read of each page.
pub(crate) struct Snapshots<K, V> {
    entries: Mutex<HashMap<K, Arc<Entry<V>>>>,
}

struct Entry<V> {
    /// Locked during a read, so that concurrent callers share it. An error is kept too: an unavailable
    /// store is not queried once per tab.
    last: tokio::sync::Mutex<Option<(BootInstant, ApiResult<Arc<V>>)>>,
}

impl<V> Entry<V> {
    fn is_younger_than(&self, max_age: Duration) -> bool {
        let now = BootInstant::now();
        let last = self.last.try_lock();
        last.is_ok_and(|last| last.as_ref().is_some_and(|(at, _)| now.after(*at) < max_age))
    }
}

impl<K, V> Default for Snapshots<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<K: Hash + Eq + Clone, V> Snapshots<K, V> {
    /// Returns the last read if it began less than `max_age` ago, otherwise reads. All callers have the same
    /// `max_age`.
    pub(crate) async fn get(
        &self,
        key: &K,
        max_age: Duration,
        read: impl Future<Output = ApiResult<V>>,
    ) -> ApiResult<Arc<V>> {
        let entry = self.entry(key, max_age);
        let mut last = entry.last.lock().await;
        let began = BootInstant::now();
        if let Some((at, known)) = &*last
            && began.after(*at) < max_age
        {
            return known.clone();
        }
        let read = read.await.map(Arc::new);
        *last = Some((began, read.clone()));
        read
    }

    /// Forgets all reads, after a change that a viewer made and wants to see.
    pub(crate) fn clear(&self) {
        locked(&self.entries).clear();
    }

    fn entry(&self, key: &K, max_age: Duration) -> Arc<Entry<V>> {
        let mut entries = locked(&self.entries);
        if let Some(entry) = entries.get(key) {
            return entry.clone();
        }
        // The data of a page may be large, and most pages are seen once.
        entries.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.is_younger_than(max_age));
        if entries.len() >= MAX_ENTRIES {
            entries.retain(|_, entry| Arc::strong_count(entry) > 1);
        }
        let entry = Arc::new(Entry { last: tokio::sync::Mutex::default() });
        entries.insert(key.clone(), entry.clone());
        entry
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn concurrent_callers_share_one_read() {
        let (snapshots, reads) = (Snapshots::<u8, usize>::default(), AtomicUsize::new(0));
        let read = || async {
            tokio::task::yield_now().await;
            Ok(reads.fetch_add(1, Ordering::Relaxed))
        };
        let get = |key| snapshots.get(key, Duration::from_mins(1), read());
        let all = futures_util::future::join_all((0..50).map(|_| get(&1))).await;
        assert!(all.into_iter().all(|value| *value.unwrap() == 0));
        assert_eq!(*get(&2).await.unwrap(), 1);
        snapshots.clear();
        assert_eq!(*get(&1).await.unwrap(), 2);
        assert_eq!(*snapshots.get(&1, Duration::ZERO, read()).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn the_number_of_kept_pages_is_bounded() {
        let snapshots = Snapshots::<usize, ()>::default();
        for key in 0..3 * MAX_ENTRIES {
            snapshots.get(&key, Duration::from_mins(1), async { Ok(()) }).await.unwrap();
        }
        assert!(snapshots.entries.lock().unwrap().len() <= MAX_ENTRIES);
    }

    #[tokio::test]
    async fn the_data_of_a_page_are_not_kept_when_they_are_old() {
        let snapshots = Snapshots::<usize, Vec<u8>>::default();
        let max_age = Duration::from_millis(1);
        for key in 0..20 {
            snapshots.get(&key, max_age, async { Ok(vec![0; 1 << 20]) }).await.unwrap();
            tokio::time::sleep(2 * max_age).await;
        }
        assert_eq!(snapshots.entries.lock().unwrap().len(), 1);
    }
}
