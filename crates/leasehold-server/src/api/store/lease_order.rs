//! Order of the calls for one lease id: one at a time, and none that was superseded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::LeaseId;
use leasehold::store::protocol::CallId;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use super::state::locked;
use crate::problem::Problem;

/// Time for which a superseding call is remembered. Longer than any request can be in flight: the
/// clock in a request rejects it before.
const RETENTION: Duration = Duration::from_mins(2);

/// Serializes the calls for each lease id.
#[derive(Debug, Clone, Default)]
pub(super) struct LeaseOrder {
    leases: Arc<Mutex<HashMap<LeaseId, LeaseMutex>>>,
    superseding: Arc<Mutex<SupersedingCalls>>,
}

/// Last superseding call of each client and lease id: its number and its arrival time.
type SupersedingCalls = HashMap<(Uuid, LeaseId), (u64, BootInstant)>;

type LeaseMutex = Arc<tokio::sync::Mutex<()>>;

/// Exclusive access to a lease id.
pub(super) struct LeaseTurn {
    order: LeaseOrder,
    lease: LeaseId,
    mutex: LeaseMutex,
    guard: Option<OwnedMutexGuard<()>>,
}

impl LeaseOrder {
    /// Waits until all earlier calls for this lease id have ended.
    pub(super) async fn enter(&self, lease: LeaseId) -> LeaseTurn {
        let mutex = locked(&self.leases).entry(lease).or_default().clone();
        let mut turn = LeaseTurn { order: self.clone(), lease, mutex: mutex.clone(), guard: None };
        turn.guard = Some(mutex.lock_owned().await);
        turn
    }
}

impl LeaseTurn {
    /// Rejects a call that its client has superseded by a later one, because it received no response.
    pub(super) fn must_be_the_last(&self, call: CallId) -> Result<(), Problem> {
        let mut superseding = locked(&self.order.superseding);
        let key = (call.client, self.lease);
        if superseding.get(&key).is_some_and(|(last, _)| call.number < *last) {
            return Err(Problem::new("LATE", "the client has superseded this request by a later one"));
        }
        if call.supersedes {
            let now = BootInstant::now();
            superseding.retain(|_, (_, since)| now.after(*since) < RETENTION);
            superseding.insert(key, (call.number, now));
        }
        Ok(())
    }
}

impl Drop for LeaseTurn {
    fn drop(&mut self) {
        self.guard = None;
        let mut leases = locked(&self.order.leases);
        // One reference in the map and one here: no other call uses the mutex.
        if Arc::strong_count(&self.mutex) == 2 {
            leases.remove(&self.lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> LeaseId {
        LeaseId::from_uuid(Uuid::from_u128(1))
    }

    #[tokio::test]
    async fn a_second_call_waits_and_no_entry_remains() {
        let order = LeaseOrder::default();
        let first = order.enter(lease()).await;
        let again = order.clone();
        let second = tokio::spawn(async move { again.enter(lease()).await });
        tokio::task::yield_now().await;
        assert!(!second.is_finished(), "the second call waits for the first");
        drop(first);
        drop(second.await.unwrap());
        assert!(locked(&order.leases).is_empty());
    }

    #[tokio::test]
    async fn a_superseded_call_is_rejected_however_late_it_arrives() {
        let order = LeaseOrder::default();
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let turn = order.enter(lease()).await;
        let call = |client, number, supersedes| turn.must_be_the_last(CallId { client, number, supersedes });
        assert!(call(one, 5, false).is_ok());
        assert!(call(one, 7, true).is_ok());
        assert_eq!(call(one, 6, false).unwrap_err().code(), "LATE");
        assert!(call(one, 8, false).is_ok());
        assert!(call(other, 1, false).is_ok(), "each client has its own numbers");
    }
}
