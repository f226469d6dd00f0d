//! Order of the calls for one lease id: each begins when the previous one has ended, even if its
//! caller has dropped it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::ghosts::Ghosts;
use crate::model::LeaseId;
use crate::store::BootInstant;

/// Number of lines from which on unused ones are removed.
const MANY: usize = 1024;

#[derive(Debug, Clone, Default)]
pub(super) struct Lines(Arc<Mutex<HashMap<LeaseId, Line>>>);

#[derive(Debug, Default)]
struct Line {
    /// Number of calls in the line.
    calls: usize,
    /// Resolves when the last call has ended.
    last: Option<oneshot::Receiver<()>>,
    ghosts: Ghosts,
}

/// Place in a line. Dropping it lets the next call begin.
#[derive(Debug)]
pub(super) struct Turn {
    lines: Lines,
    lease: LeaseId,
    before: Option<oneshot::Receiver<()>>,
    _over: oneshot::Sender<()>,
}

impl Lines {
    /// Takes the last place, without waiting.
    pub(super) fn enter(&self, lease: LeaseId) -> Turn {
        let (over, ended) = oneshot::channel();
        let mut lines = self.lines();
        if lines.len() >= MANY {
            let now = BootInstant::now();
            lines.retain(|_, line| {
                line.ghosts.forget_old(now);
                line.calls > 0 || !line.ghosts.is_empty()
            });
        }
        let line = lines.entry(lease).or_default();
        line.calls += 1;
        let before = line.last.replace(ended);
        Turn { lines: self.clone(), lease, before, _over: over }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<LeaseId, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Waits until all earlier calls have ended; returns the in-doubt requests that they have left.
    pub(super) async fn begin(&mut self) -> Ghosts {
        if let Some(before) = self.before.take() {
            let _ = before.await; // The sender is dropped, never used.
        }
        let mut lines = self.lines.lines();
        let ghosts = lines.get_mut(&self.lease).map(|line| std::mem::take(&mut line.ghosts));
        ghosts.unwrap_or_default()
    }

    /// Passes the in-doubt requests on to the next call.
    pub(super) fn end(self, ghosts: Ghosts) {
        if let Some(line) = self.lines.lines().get_mut(&self.lease) {
            line.ghosts = ghosts;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        if let Some(line) = lines.get_mut(&self.lease) {
            line.calls -= 1;
            if line.calls == 0 && line.ghosts.is_empty() {
                lines.remove(&self.lease);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::ghosts::Kind;
    use super::*;

    #[tokio::test]
    async fn a_call_begins_when_the_one_before_it_is_over_and_learns_what_it_left() {
        let lines = Lines::default();
        let lease = LeaseId::from_uuid(Uuid::from_u128(1));
        let (mut one, mut two) = (lines.enter(lease), lines.enter(lease));
        let mut ghosts = one.begin().await;
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), two.begin());
        assert!(waits.await.is_err(), "its turn has not come");
        ghosts.add(vec![Uuid::from_u128(9)], BootInstant::now(), Kind::Takes);
        // The receiver that it awaited is lost with the timeout; a new place behind the first shows
        // the same.
        let mut three = lines.enter(lease);
        drop(two);
        one.end(ghosts);
        let ghosts = three.begin().await;
        assert!(!ghosts.is_empty());
        drop(three);
        assert!(lines.lines().is_empty(), "nobody needs it any more");
    }
}
