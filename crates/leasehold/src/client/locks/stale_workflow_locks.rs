//! Clears locks of workflows that are held by an execution that is not running.

use super::in_doubt;
use crate::client::context::Inner;
use crate::error::Result;
use crate::model::{
    ExecutionId, ForceRelease, Holder, LockName, LockRecord, Reason, TaskState, Timestamp, WorkflowName,
};
use crate::store::{ListLocks, LockState};

#[derive(Debug, Default)]
pub(in crate::client) struct StaleCheck {
    /// Whether the lock was taken from an execution that is not running.
    pub(in crate::client) cleared: bool,
    /// Holder of the lock that is not an execution.
    pub(in crate::client) other_holder: Option<Holder>,
    /// Whether an execution that is not running still has the lock, because this process is not permitted to
    /// take it away.
    is_left: bool,
}

impl StaleCheck {
    /// Whether no holder is known that keeps an execution from acquiring the lock now. A start does not depend
    /// on this: its execution waits for the lock.
    pub(in crate::client) fn is_free(&self) -> bool {
        self.other_holder.is_none() && !self.is_left
    }
}

/// Takes a workflow's lock from executions that are not running. A caller that is not permitted to do so
/// leaves the lock to a process that is, such as the server with its maintenance.
pub(in crate::client) async fn clear_stale(inner: &Inner, lock: &LockName) -> Result<StaleCheck> {
    let Some(record) = inner.locks().get(lock).await? else { return Ok(StaleCheck::default()) };
    if record.holders.is_empty() {
        return Ok(StaleCheck::default());
    }
    let now = inner.locks().now().await?;
    match clear_stale_leases(inner, &record, now).await {
        Err(error) if error.is_not_permitted() => {
            tracing::debug!(%lock, %error, "this process is not permitted to clear a stale lock");
            Ok(StaleCheck { is_left: true, ..StaleCheck::default() })
        }
        check => check,
    }
}

/// Ends the leases of executions that are not running. An execution is granted the lock only while it
/// runs; therefore a holder that is read from the lock first, and found not running then, has ended, and
/// its process with it.
async fn clear_stale_leases(inner: &Inner, record: &LockRecord, now: Timestamp) -> Result<StaleCheck> {
    let (lock, mut check) = (&record.name, StaleCheck::default());
    for lease in record.live(now) {
        let Some(execution) = ExecutionId::of_holder(&lease.request.holder) else {
            check.other_holder = Some(lease.request.holder.clone());
            continue;
        };
        let state = inner.tasks()?.get(execution.task()).await?.map(|task| task.state);
        if state == Some(TaskState::Running) {
            continue;
        }
        // The record may be from a list: the execution may have ended and released its lock meanwhile.
        let current = inner.locks().get(lock).await?;
        if !current.is_some_and(|current| current.holders.iter().any(|held| held.token == lease.token)) {
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
        if !page.items.is_empty() {
            let now = inner.locks().now().await?;
            for record in &page.items {
                cleared += u32::from(clear_stale_leases(inner, record, now).await?.cleared);
            }
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok(cleared);
        }
    }
}
