//! Subscribers of this process by key, such as a lease: each is registered until its registration is
//! dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, PoisonError};

use crate::store::support::sync::{Mutex, MutexGuard};

/// Subscribers by key. One key may have several, in the order in which they were registered.
#[derive(Debug)]
pub(crate) struct Registry<K, V>(Arc<Mutex<Subscribers<K, V>>>);

pub(super) type Subscribers<K, V> = HashMap<K, Vec<Arc<V>>>;

/// Registration of one subscriber, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Registration<K: Eq + Hash, V> {
    pub(super) registry: Registry<K, V>,
    pub(super) key: K,
    pub(super) subscriber: Arc<V>,
}

impl<K: Eq + Hash + Clone, V> Registry<K, V> {
    pub(crate) fn register(&self, key: K, subscriber: V) -> Registration<K, V> {
        let subscriber = Arc::new(subscriber);
        self.lock().entry(key.clone()).or_default().push(subscriber.clone());
        Registration { registry: Self(self.0.clone()), key, subscriber }
    }

    /// Returns the subscribers of a key. A subscriber may be called only without the map locked: it
    /// may register or end subscriptions.
    pub(crate) fn get(&self, key: &K) -> Vec<Arc<V>> {
        self.lock().get(key).cloned().unwrap_or_default()
    }

    /// Returns all subscribers.
    #[cfg(feature = "http")]
    pub(crate) fn all(&self) -> Vec<Arc<V>> {
        self.lock().values().flatten().cloned().collect()
    }

    /// Returns up to `most` keys that have subscribers.
    #[cfg(feature = "http")]
    pub(crate) fn keys(&self, most: usize) -> Vec<K> {
        self.lock().keys().take(most).cloned().collect()
    }
}

impl<K, V> Registry<K, V> {
    pub(super) fn lock(&self) -> MutexGuard<'_, Subscribers<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> Default for Registry<K, V> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(HashMap::new())))
    }
}

impl<K: Eq + Hash, V> Drop for Registration<K, V> {
    fn drop(&mut self) {
        let mut registered = self.registry.lock();
        if let Some(subscribers) = registered.get_mut(&self.key) {
            subscribers.retain(|subscriber| !Arc::ptr_eq(subscriber, &self.subscriber));
            if subscribers.is_empty() {
                registered.remove(&self.key);
            }
        }
    }
}
