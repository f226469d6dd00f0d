//! Which holders and workers are notified after which operation.

use super::{Recipient, wake};
use crate::model::{Lease, LockName, Outcome, Task, TaskState};
use crate::store::Store;

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
