//! Order of the calls for one lease id: each begins when the previous one has ended, even if its
//! caller has dropped it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::in_doubt::InDoubtRequests;
use crate::model::LeaseId;
use crate::store::BootInstant;

/// Number of leases at which unused entries are removed.
const CLEANUP_THRESHOLD: usize = 1024;

/// Calls that have not ended, and in-doubt requests, by lease id.
#[derive(Debug, Clone, Default)]
pub(super) struct LeaseOrder(Arc<Mutex<HashMap<LeaseId, LeaseCalls>>>);

#[derive(Debug, Default)]
struct LeaseCalls {
    /// Number of calls that have not ended.
    pending: usize,
    /// Resolves when the last call has ended.
    last: Option<oneshot::Receiver<()>>,
    in_doubt: InDoubtRequests,
}

/// Position of a call among the calls for one lease. Dropping it lets the next call begin.
#[derive(Debug)]
pub(super) struct OrderedCall {
    order: LeaseOrder,
    lease: LeaseId,
    previous: Option<oneshot::Receiver<()>>,
    _ended: oneshot::Sender<()>,
}

impl LeaseOrder {
    /// Puts a call behind the earlier calls for this lease, without waiting.
    pub(super) fn enqueue(&self, lease: LeaseId) -> OrderedCall {
        let (done, ended) = oneshot::channel();
        let mut leases = self.leases();
        if leases.len() >= CLEANUP_THRESHOLD {
            let now = BootInstant::now();
            leases.retain(|_, calls| {
                calls.in_doubt.remove_expired(now);
                calls.pending > 0 || !calls.in_doubt.is_empty()
            });
        }
        let calls = leases.entry(lease).or_default();
        calls.pending += 1;
        let previous = calls.last.replace(ended);
        OrderedCall { order: self.clone(), lease, previous, _ended: done }
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<LeaseId, LeaseCalls>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OrderedCall {
    /// Waits until all earlier calls have ended; returns the in-doubt requests that they have left.
    pub(super) async fn begin(&mut self) -> InDoubtRequests {
        if let Some(previous) = self.previous.take() {
            let _ = previous.await; // The sender is dropped, never used.
        }
        let mut leases = self.order.leases();
        let in_doubt = leases.get_mut(&self.lease).map(|calls| std::mem::take(&mut calls.in_doubt));
        in_doubt.unwrap_or_default()
    }

    /// Passes the in-doubt requests on to the next call.
    pub(super) fn end(self, in_doubt: InDoubtRequests) {
        if let Some(calls) = self.order.leases().get_mut(&self.lease) {
            calls.in_doubt = in_doubt;
        }
    }
}

impl Drop for OrderedCall {
    fn drop(&mut self) {
        let mut leases = self.order.leases();
        if let Some(calls) = leases.get_mut(&self.lease) {
            calls.pending -= 1;
            if calls.pending == 0 && calls.in_doubt.is_empty() {
                leases.remove(&self.lease);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::in_doubt::OpKind;
    use super::*;

    #[tokio::test]
    async fn a_call_begins_when_the_previous_one_has_ended_and_gets_its_in_doubt_requests() {
        let order = LeaseOrder::default();
        let lease = LeaseId::from_uuid(Uuid::from_u128(1));
        let (mut one, mut two) = (order.enqueue(lease), order.enqueue(lease));
        let mut in_doubt = one.begin().await;
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), two.begin());
        assert!(waits.await.is_err(), "the first call has not ended");
        in_doubt.add(vec![Uuid::from_u128(9)], BootInstant::now(), OpKind::Acquire);
        // The receiver that it awaited is lost with the timeout; a new call behind the first
        // shows the same.
        let mut three = order.enqueue(lease);
        drop(two);
        one.end(in_doubt);
        let in_doubt = three.begin().await;
        assert!(!in_doubt.is_empty());
        drop(three);
        assert!(order.leases().is_empty(), "the entry is unused");
    }
}
