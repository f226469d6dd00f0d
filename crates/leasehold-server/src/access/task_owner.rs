//! Ownership of task leases: a lease belongs to the API token that acquired it. The task id and the
//! fencing token are visible to every reader and grant no access. The id of the worker that leased
//! the task carries a tag of the token.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::model::{Task, TaskId, Token, WorkerId};
use leasehold::store::TaskStore;
use leasehold::store::protocol::WorkerTag;

use super::authenticator::Identity;
use crate::problem::{ApiResult, Problem};

/// Maximum number of leases whose owners are cached; the owners of others are read from the store.
const MAX_CACHED: usize = 50_000;

impl Identity {
    /// Returns the tag on the ids of the caller's workers; `None` on a server without tokens.
    pub(crate) fn worker_tag(&self) -> Option<WorkerTag> {
        self.has_token.then(|| WorkerTag::of(&self.name))
    }

    /// Returns the id under which the caller's worker leases tasks. A caller that sends the id of
    /// another token's worker gets a different id.
    pub(crate) fn worker(&self, id: WorkerId) -> WorkerId {
        self.worker_tag().map_or(id, |tag| tag.put_on(id))
    }

    fn owns(&self, task: &Task) -> bool {
        self.worker_tag().is_none_or(|tag| task.worker.is_some_and(|worker| tag.is_on(worker)))
    }

    /// Rejects a caller whose token did not acquire this lease of the task.
    pub(crate) fn must_own_task(&self, task: &Task) -> ApiResult<()> {
        if self.owns(task) || self.may_act_for_others() {
            return Ok(());
        }
        let worker = task.worker.map_or_else(|| "another worker".to_owned(), |id| format!("worker {id}"));
        let detail =
            format!("task {} is leased by {worker}, which does not use the token '{}'", task.id, self.name);
        Err(Problem::new("FORBIDDEN", detail)
            .hint("use the token that leased the task, or the token of an operator"))
    }
}

/// Cached owners of task leases that were acquired through this server or looked up.
#[derive(Default)]
pub(crate) struct TaskOwners(Mutex<HashSet<(TaskId, Token, WorkerTag)>>);

impl TaskOwners {
    /// Caches the owner of these leases.
    pub(crate) fn record(&self, identity: &Identity, tasks: &[Task]) {
        let Some(tag) = identity.worker_tag() else { return };
        let mut cached = self.cached();
        if cached.len() + tasks.len() > MAX_CACHED {
            cached.clear();
        }
        cached.extend(tasks.iter().filter(|task| identity.owns(task)).map(|task| (task.id, task.token, tag)));
    }

    /// Rejects a caller that does not own one of these leases. A lease that has ended belongs to no
    /// caller; the store rejects it.
    pub(crate) async fn check(
        &self,
        store: &dyn TaskStore,
        identity: &Identity,
        leases: impl IntoIterator<Item = (TaskId, Token)> + Send,
    ) -> ApiResult<()> {
        let is_unrestricted = identity.may_act_for_others() && !identity.is_scoped();
        let Some(tag) = identity.worker_tag().filter(|_| !is_unrestricted) else { return Ok(()) };
        let unknown: Vec<_> = {
            let cached = self.cached();
            leases.into_iter().filter(|(id, token)| !cached.contains(&(*id, *token, tag))).collect()
        };
        for (id, token) in unknown {
            if let Some(task) = store.get(id).await?
                && task.token == token
            {
                identity.must_reach_queue(&task.queue)?;
                identity.must_own_task(&task)?;
                self.record(identity, &[task]);
            }
        }
        Ok(())
    }

    fn cached(&self) -> MutexGuard<'_, HashSet<(TaskId, Token, WorkerTag)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
