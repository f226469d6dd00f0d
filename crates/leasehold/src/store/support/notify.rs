//! Which holders and workers are notified after which operation.

use super::{Recipient, wake};
use crate::model::{EventKind, Lease, LeaseId, LockName, LockOp, Outcome, Task, TaskState, Token};
use crate::store::{ListEvents, LockStore, Store};

/// Number of the newest events of a lock that are searched for a forced release.
const SEARCHED_EVENTS: u32 = 50;

/// Sends notices to the holders whose leases were ended, marked or given another TTL by an operation
/// of another caller. Best effort: a holder that receives no notice learns of the change at its next
/// renewal.
pub async fn notify_holders(store: &dyn Store, name: &LockName, outcome: &Outcome) {
    let to: Vec<Recipient> = match outcome {
        Outcome::Forced(lease) | Outcome::Renewed(lease) => vec![lease.request.lease_id.into()],
        Outcome::Released(lease) if may_be_renewed_elsewhere(lease) => vec![lease.request.lease_id.into()],
        // Within this process a notice costs nothing: a server has the subscriptions of its clients.
        Outcome::Released(lease) => {
            wake::deliver(&[lease.request.lease_id.into()]);
            return;
        }
        Outcome::ReleaseRequested(_) => match store.locks().get(name).await {
            Ok(record) => {
                let holders = record.map(|record| record.holders).unwrap_or_default();
                let asked = holders.iter().filter(|lease| lease.release_request.is_some());
                asked.map(|lease| lease.request.lease_id.into()).collect()
            }
            Err(error) => {
                tracing::debug!(lock = %name, %error, "the holders learn at their next renewal that they are asked");
                return;
            }
        },
        _ => return,
    };
    if !to.is_empty() {
        store.notify(&to).await;
    }
}

/// Sends notices to the holders whose leases an operation may have changed: its response was lost, or shows
/// that an earlier attempt may have been executed. Best effort, like [`notify_holders`].
pub async fn notify_in_doubt(store: &dyn Store, name: &LockName, op: &LockOp) {
    let lease = match op {
        LockOp::Release(release) => Some(release.lease_id),
        LockOp::Renew(renew) | LockOp::RenewLogged(renew) if renew.ttl.is_some() => Some(renew.lease_id),
        LockOp::ForceRelease(force) => lease_with(store.locks(), name, force.token).await,
        LockOp::RequestRelease(_) => {
            return notify_holders(store, name, &Outcome::ReleaseRequested(0)).await;
        }
        _ => None,
    };
    if let Some(lease) = lease {
        store.notify(&[lease.into()]).await;
    }
}

/// Returns the lease that has this token, or had it until it was released by force.
async fn lease_with(locks: &dyn LockStore, name: &LockName, token: Token) -> Option<LeaseId> {
    if let Ok(Some(record)) = locks.get(name).await
        && let Some(lease) = record.holders.iter().find(|lease| lease.token == token)
    {
        return Some(lease.request.lease_id);
    }
    let newest = ListEvents::default().lock(name.clone()).limit(SEARCHED_EVENTS);
    let events = locks.history(&newest).await.ok()?.items;
    let forced = events.iter().find(|event| event.kind == EventKind::Forced && event.token == token);
    forced.map(|event| event.lease_id)
}

/// Whether a guard in another process may renew the released lease. A lease that was never renewed
/// and names no process was mostly acquired and released by two HTTP requests, without a guard.
fn may_be_renewed_elsewhere(lease: &Lease) -> bool {
    lease.request.process.is_some() || lease.renewals > 0
}

/// Sends a notice to the worker that runs a task whose cancellation was requested. Best effort, as
/// with locks: without the notice, the worker learns of the request with its next heartbeat.
pub async fn notify_worker(store: &dyn Store, task: &Task) {
    if let (TaskState::Running, Some(_), Some(worker)) = (task.state, &task.cancel, task.worker) {
        store.notify(&[worker.into()]).await;
    }
}
