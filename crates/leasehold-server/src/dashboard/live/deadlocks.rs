//! Search for deadlocks, which all pages share. It reads all locks with waiters, so it may take longer than
//! the rest of a page: a page waits for it only briefly.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::client::Deadlocks;
use leasehold::{BootInstant, Leasehold};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::problem::ApiResult;
use crate::sync::locked;

/// Number of refreshes of a page after which deadlocks are searched again.
const EVERY: u32 = 3;
/// Multiple of the time of a search after which the next one may begin, so that with thousands of waited
/// locks the searches take at most a twentieth of the time.
const PAUSE: u32 = 20;
/// Longest such pause.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// Time that a page waits for a search. After that, it shows the result of the one before.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// What is known about the deadlocks of the store.
#[derive(Debug, Clone)]
pub(crate) enum KnownDeadlocks {
    /// Not searched: the engine does not know who waits, or there is no waiter.
    NotSearched,
    /// The first search is not finished.
    Searching,
    Searched(Arc<Deadlocks>),
}

impl KnownDeadlocks {
    pub(crate) fn as_deadlocks(&self) -> Option<&Deadlocks> {
        match self {
            Self::NotSearched | Self::Searching => None,
            Self::Searched(deadlocks) => Some(deadlocks),
        }
    }

    pub(crate) fn is_searching(&self) -> bool {
        matches!(self, Self::Searching)
    }
}

#[derive(Default)]
pub(crate) struct DeadlockSearch {
    state: Mutex<State>,
    finished: Notify,
}

#[derive(Default)]
struct State {
    /// Search that was started last.
    search: Option<JoinHandle<()>>,
    last: Option<Finished>,
}

/// A finished search. An error is kept too: an unavailable store is not queried once per tab.
struct Finished {
    began: BootInstant,
    took: Duration,
    result: ApiResult<Arc<Deadlocks>>,
}

impl Finished {
    fn is_recent(&self, refresh_interval: Duration) -> bool {
        let pause = (PAUSE * self.took).min(MAX_PAUSE);
        BootInstant::now().after(self.began) < pause.max(EVERY * refresh_interval)
    }
}

impl DeadlockSearch {
    /// Returns the deadlocks of the store, from a recent search or from a new one.
    pub(in crate::dashboard) async fn get(
        self: &Arc<Self>,
        leasehold: &Leasehold,
        refresh_interval: Duration,
    ) -> ApiResult<KnownDeadlocks> {
        if !leasehold.capabilities().queues {
            return Ok(KnownDeadlocks::NotSearched);
        }
        let finished = self.finished.notified();
        {
            let mut state = locked(&self.state);
            if let Some(last) = &state.last
                && last.is_recent(refresh_interval)
            {
                return last.result.clone().map(KnownDeadlocks::Searched);
            }
            if state.search.as_ref().is_none_or(JoinHandle::is_finished) {
                state.search = Some(tokio::spawn(self.clone().run(leasehold.clone())));
                // An error says nothing about the search that begins now.
                state.last.take_if(|last| last.result.is_err());
            }
        }
        let _ = tokio::time::timeout(MAX_WAIT, finished).await; // The last result is used in either case.
        match &locked(&self.state).last {
            Some(last) => last.result.clone().map(KnownDeadlocks::Searched),
            None => Ok(KnownDeadlocks::Searching),
        }
    }

    async fn run(self: Arc<Self>, leasehold: Leasehold) {
        let began = BootInstant::now();
        let result = leasehold.locks().deadlocks().await.map(Arc::new).map_err(Into::into);
        let last = Finished { began, took: BootInstant::now().after(began), result };
        locked(&self.state).last = Some(last);
        self.finished.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_page_does_not_wait_for_a_long_search() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let search = Arc::new(DeadlockSearch::default());
        let long = tokio::spawn(tokio::time::sleep(Duration::from_mins(1)));
        let abort = long.abort_handle();
        locked(&search.state).search = Some(long);
        let get = || search.get(&leasehold, Duration::from_secs(1));
        assert!(get().await.unwrap().is_searching());
        abort.abort();
        while !abort.is_finished() {
            tokio::task::yield_now().await;
        }
        // A search that ended without a result, for example by a panic, is begun again.
        while get().await.unwrap().is_searching() {}
        assert!(get().await.unwrap().as_deadlocks().unwrap().found.is_empty());
    }
}
