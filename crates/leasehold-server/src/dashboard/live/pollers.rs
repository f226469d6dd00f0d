//! Pollers of the open pages: all tabs with the same page share one, which ends with the last of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use tokio::sync::watch;

use crate::problem::{ApiResult, Problem};
use crate::sync::{Counts, InProgress, locked};

/// Maximum number of pollers: each reads the store, and viewers can invent pages by their filters.
const MAX_POLLERS: usize = 200;
/// Maximum number of pages that the tabs of one token follow, so that one viewer leaves pollers to the others.
const MAX_PAGES_PER_TOKEN: usize = 50;

/// What the poller of a page has seen last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Fingerprint of the data.
    pub(crate) version: u64,
    /// Whether the store responds.
    pub(crate) is_available: bool,
}

/// Pollers by page.
pub(crate) struct Pollers<K> {
    all: Mutex<HashMap<K, watch::Sender<Seen>>>,
    /// Number of tabs by token and page.
    tabs: Counts<(String, K)>,
}

impl<K> Default for Pollers<K> {
    fn default() -> Self {
        Self { all: Mutex::default(), tabs: Counts::default() }
    }
}

/// Page that a tab follows.
pub(crate) struct Followed<K: Hash + Eq> {
    pub(crate) seen: watch::Receiver<Seen>,
    /// Counts the tab; `None` on a server without tokens.
    _tab: Option<InProgress<(String, K)>>,
}

impl<K: Hash + Eq + Clone> Pollers<K> {
    /// Subscribes a tab of this token to the changes of a page, and starts its poller if it has none. On a server
    /// without tokens `token` is `None`.
    pub(crate) fn subscribe(
        &self,
        token: Option<&str>,
        key: &K,
        start: impl FnOnce(),
    ) -> ApiResult<Followed<K>> {
        // All tabs are counted under this mutex.
        let mut all = locked(&self.all);
        let tab = token.map(|token| self.count(token, key)).transpose()?;
        if let Some(poller) = all.get(key) {
            return Ok(Followed { seen: poller.subscribe(), _tab: tab });
        }
        if all.len() >= MAX_POLLERS {
            let detail = format!("this server updates {MAX_POLLERS} different pages already");
            return Err(Problem::new("RATE_LIMITED", detail).hint("close other pages of the dashboard"));
        }
        let (sender, seen) = watch::channel(Seen { version: 0, is_available: true });
        all.insert(key.clone(), sender);
        start();
        Ok(Followed { seen, _tab: tab })
    }

    /// Counts a tab of a token, unless it is one page too many for this token.
    fn count(&self, token: &str, key: &K) -> ApiResult<InProgress<(String, K)>> {
        let tab = (token.to_owned(), key.clone());
        let is_too_many = {
            let tabs = locked(&self.tabs);
            let pages = tabs.keys().filter(|(known, _)| known == token).count();
            pages >= MAX_PAGES_PER_TOKEN && !tabs.contains_key(&tab)
        };
        let counted = if is_too_many { None } else { InProgress::enter(&self.tabs, tab, usize::MAX) };
        counted.ok_or_else(|| {
            let detail = format!(
                "the token '{token}' has {MAX_PAGES_PER_TOKEN} different pages open, which is its maximum"
            );
            let problem = Problem::new("RATE_LIMITED", detail);
            problem.hint("close other pages of the dashboard, or sign in with another token")
        })
    }

    /// Publishes what the poller of a page has seen. Returns `false` if no tab shows the page; then the
    /// poller must end.
    pub(crate) fn publish(&self, key: &K, seen: Seen) -> bool {
        // A new tab subscribes under the same mutex: it either keeps this poller or starts another.
        let mut all = locked(&self.all);
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
        locked(&self.all).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn tabs_share_a_poller_which_ends_with_the_last() {
        let (pollers, started) = (Pollers::<u8>::default(), Cell::new(0));
        let subscribe = || pollers.subscribe(None, &1, || started.set(started.get() + 1)).unwrap();
        let tabs: Vec<_> = (0..50).map(|_| subscribe()).collect();
        assert_eq!(started.get(), 1);
        let seen = Seen { version: 7, is_available: true };
        assert!(pollers.publish(&1, seen));
        assert!(tabs.iter().all(|tab| tab.seen.has_changed().unwrap() && *tab.seen.borrow() == seen));
        drop(tabs);
        assert!(!pollers.publish(&1, seen));
        let _tab = subscribe();
        assert_eq!(started.get(), 2);
    }

    #[test]
    fn the_number_of_pollers_is_bounded() {
        let (pollers, started) = (Pollers::<usize>::default(), Cell::new(0));
        let subscribe = |key| pollers.subscribe(None, &key, || started.set(started.get() + 1));
        let mut tabs: Vec<_> = (0..MAX_POLLERS).map(|key| subscribe(key).unwrap()).collect();
        assert_eq!(subscribe(MAX_POLLERS).err().unwrap().code(), "RATE_LIMITED");
        tabs.push(subscribe(5).expect("a page with a poller has room for more tabs"));
        assert_eq!(started.get(), MAX_POLLERS);
        tabs.remove(0);
        assert!(!pollers.publish(&0, Seen { version: 1, is_available: true }), "its poller ends");
        assert!(subscribe(MAX_POLLERS).is_ok());
    }

    #[test]
    fn one_token_does_not_use_up_the_pollers() {
        let pollers = Pollers::<usize>::default();
        let subscribe = |token, key| pollers.subscribe(Some(token), &key, || {});
        let mut tabs: Vec<_> = (0..MAX_PAGES_PER_TOKEN).map(|key| subscribe("ada", key).unwrap()).collect();
        let refused = subscribe("ada", MAX_PAGES_PER_TOKEN).err().unwrap();
        assert_eq!(refused.code(), "RATE_LIMITED");
        assert!(refused.detail().contains("the token 'ada'"), "{}", refused.detail());
        let other = subscribe("bob", MAX_PAGES_PER_TOKEN).expect("another token has its own limit");
        assert!(subscribe("ada", MAX_PAGES_PER_TOKEN).is_err(), "also if the page has a poller");
        tabs.push(subscribe("ada", 0).expect("a page that the token follows has room for more tabs"));
        tabs.remove(0);
        assert!(subscribe("ada", MAX_PAGES_PER_TOKEN).is_err(), "another tab follows the page");
        tabs.pop();
        assert!(subscribe("ada", MAX_PAGES_PER_TOKEN).is_ok());
        drop((tabs, other));
        assert!(locked(&pollers.tabs).is_empty(), "only open tabs are counted");
    }
}
