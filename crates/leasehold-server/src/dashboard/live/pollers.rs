//! Pollers of the open pages: all tabs with the same page share one, which ends with the last of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use tokio::sync::watch;

use crate::problem::{ApiResult, Problem};
use crate::sync::locked;

/// Maximum number of pollers: each reads the store, and viewers can invent pages by their filters.
const MAX_POLLERS: usize = 200;

/// What the poller of a page has seen last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Fingerprint of the data.
    pub(crate) version: u64,
    /// Whether the store responds.
    pub(crate) is_available: bool,
}

/// Pollers by page.
pub(crate) struct Pollers<K>(Mutex<HashMap<K, watch::Sender<Seen>>>);

impl<K> Default for Pollers<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq + Clone> Pollers<K> {
    /// Subscribes to the changes of a page, and starts its poller if it has none.
    pub(crate) fn subscribe(&self, key: &K, start: impl FnOnce()) -> ApiResult<watch::Receiver<Seen>> {
        let mut all = locked(&self.0);
        if let Some(poller) = all.get(key) {
            return Ok(poller.subscribe());
        }
        if all.len() >= MAX_POLLERS {
            let detail = format!("this server updates {MAX_POLLERS} different pages already");
            return Err(Problem::new("RATE_LIMITED", detail).hint("close other pages of the dashboard"));
        }
        let (sender, receiver) = watch::channel(Seen { version: 0, is_available: true });
        all.insert(key.clone(), sender);
        start();
        Ok(receiver)
    }

    /// Publishes what the poller of a page has seen. Returns `false` if no tab shows the page; then the
    /// poller must end.
    pub(crate) fn publish(&self, key: &K, seen: Seen) -> bool {
        // A new tab subscribes under the same mutex: it either keeps this poller or starts another.
        let mut all = locked(&self.0);
        let Some(sender) = all.get(key) else { return false };
        if sender.receiver_count() == 0 {
            all.remove(key);
            return false;
        }
        sender.send_if_modified(|last| std::mem::replace(last, seen) != seen);
        true
    }

    /// Removes a poller that has ended; its tabs see the end of their streams.
    pub(crate) fn remove(&self, key: &K) {
        locked(&self.0).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn tabs_share_a_poller_which_ends_with_the_last() {
        let (pollers, started) = (Pollers::<u8>::default(), Cell::new(0));
        let subscribe = || pollers.subscribe(&1, || started.set(started.get() + 1)).unwrap();
        let tabs: Vec<_> = (0..50).map(|_| subscribe()).collect();
        assert_eq!(started.get(), 1);
        let seen = Seen { version: 7, is_available: true };
        assert!(pollers.publish(&1, seen));
        assert!(tabs.iter().all(|tab| tab.has_changed().unwrap() && *tab.borrow() == seen));
        drop(tabs);
        assert!(!pollers.publish(&1, seen));
        let _tab = subscribe();
        assert_eq!(started.get(), 2);
    }

    #[test]
    fn the_number_of_pollers_is_bounded() {
        let (pollers, started) = (Pollers::<usize>::default(), Cell::new(0));
        let subscribe = |key| pollers.subscribe(&key, || started.set(started.get() + 1));
        let mut tabs: Vec<_> = (0..MAX_POLLERS).map(|key| subscribe(key).unwrap()).collect();
        assert_eq!(subscribe(MAX_POLLERS).unwrap_err().code(), "RATE_LIMITED");
        tabs.push(subscribe(5).expect("a page with a poller has room for more tabs"));
        assert_eq!(started.get(), MAX_POLLERS);
        tabs.remove(0);
        assert!(!pollers.publish(&0, Seen { version: 1, is_available: true }), "its poller ends");
        assert!(subscribe(MAX_POLLERS).is_ok());
    }
}
