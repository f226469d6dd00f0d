//! The order of calls for one lease id: one at a time, and none that was superseded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::LeaseId;
use leasehold::store::protocol::CallId;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use crate::problem::Problem;

/// Longer than any request may be under way: its clock refuses it before.
const REMEMBERED: Duration = Duration::from_mins(2);

#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    lines: Arc<Mutex<HashMap<LeaseId, Line>>>,
    /// The last request of each client for a lease id that supersedes those before it.
    superseded: Arc<Mutex<Superseded>>,
}

/// By client and lease: the number of the request, and when it came.
type Superseded = HashMap<(Uuid, LeaseId), (u64, BootInstant)>;

type Line = Arc<tokio::sync::Mutex<()>>;

/// A place in a line. Whoever has it is alone with its lease id.
pub(super) struct Place {
    lines: Lines,
    lease: LeaseId,
    line: Line,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Lines {
    /// Waits until all who came before are done.
    pub(super) async fn enter(&self, lease: LeaseId) -> Place {
        let line = locked(&self.lines).entry(lease).or_default().clone();
        let mut place = Place { lines: self.clone(), lease, line: line.clone(), turn: None };
        place.turn = Some(line.lock_owned().await);
        place
    }
}

impl Place {
    /// Refuses a request whose caller has sent another since, because it got no answer. To be asked when it is its turn.
    pub(super) fn must_be_the_last(&self, call: CallId) -> Result<(), Problem> {
        let mut superseded = locked(&self.lines.superseded);
        let key = (call.client, self.lease);
        if superseded.get(&key).is_some_and(|(last, _)| call.number < *last) {
            return Err(Problem::new("LATE", "its caller has sent another request since"));
        }
        if call.supersedes {
            let now = BootInstant::now();
            superseded.retain(|_, (_, since)| now.after(*since) < REMEMBERED);
            superseded.insert(key, (call.number, now));
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turn = None;
        let mut lines = locked(&self.lines.lines);
        // The map has one, and this has one: nobody else is in it.
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(&self.lease);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> LeaseId {
        LeaseId::from_uuid(Uuid::from_u128(1))
    }

    #[tokio::test]
    async fn who_comes_second_waits_and_nothing_is_left_behind() {
        let lines = Lines::default();
        let first = lines.enter(lease()).await;
        let again = lines.clone();
        let second = tokio::spawn(async move { again.enter(lease()).await });
        tokio::task::yield_now().await;
        assert!(!second.is_finished(), "its turn has not come");
        drop(first);
        drop(second.await.unwrap());
        assert!(locked(&lines.lines).is_empty());
    }

    #[tokio::test]
    async fn a_request_that_was_superseded_is_refused_however_late_it_comes() {
        let lines = Lines::default();
        let (me, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let place = lines.enter(lease()).await;
        let call = |client, number, supersedes| place.must_be_the_last(CallId { client, number, supersedes });
        assert!(call(me, 5, false).is_ok());
        assert!(call(me, 7, true).is_ok());
        assert_eq!(call(me, 6, false).unwrap_err().code(), "LATE");
        assert!(call(me, 8, false).is_ok());
        assert!(call(other, 1, false).is_ok(), "another counts for itself");
    }
}
