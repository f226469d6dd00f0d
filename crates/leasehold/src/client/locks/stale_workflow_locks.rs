//! Clears locks of workflows that are held by an execution that is not running.

use super::in_doubt;
use crate::client::context::Inner;
use crate::error::Result;
use crate::model::{ExecutionId, ForceRelease, Holder, LockName, Reason, TaskState, WorkflowName};
use crate::store::{ListLocks, LockState};

#[derive(Debug, Default)]
pub(in crate::client) struct StaleCheck {
    /// Whether the lock was taken from an execution that is not running.
    pub(in crate::client) cleared: bool,
    /// Holder of the lock that is not an execution.
    pub(in crate::client) other_holder: Option<Holder>,
}

/// Takes a workflow's lock from executions that are not running. An execution is granted the lock
/// only while it runs; therefore a holder that is read from the lock first, and found not running
/// then, has ended, and its process with it.
pub(in crate::client) async fn clear_stale(inner: &Inner, lock: &LockName) -> Result<StaleCheck> {
    let mut check = StaleCheck::default();
    let Some(record) = inner.locks().get(lock).await? else { return Ok(check) };
    if record.holders.is_empty() {
        return Ok(check);
    }
    let now = inner.locks().now().await?;
    for lease in record.live(now) {
        let Some(execution) = ExecutionId::of_holder(&lease.request.holder) else {
            check.other_holder = Some(lease.request.holder.clone());
            continue;
        };
        let state = inner.tasks()?.get(execution.task()).await?.map(|task| task.state);
        if state == Some(TaskState::Running) {
            continue;
        }
        let state = state.map_or_else(|| "unknown".to_owned(), |state| state.to_string());
        tracing::warn!(%lock, %execution, %state, "a lock was held by an execution that is not running");
        let reason = Reason::new(format!("stale: {execution} is {state}"))?;
        let force = ForceRelease { token: lease.token, by: inner.holder.clone(), reason };
        // If another lease has the lock by now, there is nothing left to clear.
        let _ = in_doubt::force_release(inner.locks(), lock, force).await?;
        check.cleared = true;
    }
    Ok(check)
}

/// Clears the stale locks of all workflows, and returns their number.
pub(in crate::client) async fn clear_all_stale(inner: &Inner) -> Result<u32> {
    let mut cleared = 0;
    let mut query = ListLocks {
        prefix: Some(WorkflowName::PREFIX.to_owned()),
        state: Some(LockState::Held),
        ..ListLocks::default()
    };
    loop {
        let page = inner.locks().list(&query).await?;
        for record in &page.items {
            cleared += u32::from(clear_stale(inner, &record.name).await?.cleared);
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok(cleared);
        }
    }
}
