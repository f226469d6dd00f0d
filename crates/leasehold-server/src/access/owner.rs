//! Ownership of leases: a lease on a lock or a task belongs to the API token that acquired it, and an
//! execution to the token that started it. The lease id and the fencing token are visible to every
//! reader and grant no access.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use leasehold::model::{
    ExecutionSpec, Holder, LeaseId, LockName, LockRequest, Metadata, NewTask, Payload, QueueName, Task,
    TaskId, Token, WorkerId, WorkflowName,
};
use leasehold::store::protocol::WorkerTag;
use leasehold::store::{Store, TaskStore};

use super::Role;
use super::scope::Identity;
use crate::problem::{ApiResult, Problem};
use crate::sync::locked;

/// Metadata key under which a lease stores the name of its API token. Values that callers send
/// under this key are discarded.
const TOKEN: &str = "token";
/// Token that no lease of a task has: tokens follow the clock in microseconds, which reaches it in the year
/// 2255.
const NO_LEASE: Token = Token::MAX;
/// Maximum number of leases on locks, and of leases on tasks, whose owners are cached; the owners of
/// others are read from the store.
const MAX_CACHED: usize = 50_000;

impl Identity {
    /// Writes the name of the caller's token into the metadata of a lease. Drops the longest
    /// entries if there is no space.
    pub(crate) fn stamp(&self, metadata: &mut Metadata) {
        metadata.remove(TOKEN);
        if !self.has_token {
            return;
        }
        while metadata.set(TOKEN, self.name.as_str()).is_err() {
            let largest = metadata.iter().max_by_key(|(key, value)| key.len() + value.len());
            let Some(largest) = largest.map(|(key, _)| key.to_owned()) else { return };
            metadata.remove(&largest);
        }
    }

    /// Returns the actor for the history: the claimed name, and the token that the request carried; the token
    /// alone if both are too long together. `client/locks/in_doubt.rs` of the library recognizes these forms.
    pub(crate) fn signed(&self, claimed: Holder) -> Holder {
        if !self.has_token || claimed.as_str() == self.name {
            return claimed;
        }
        let name = Holder::new(self.name.as_str());
        Holder::new(format!("{claimed} via {}", self.name)).or(name).unwrap_or(claimed)
    }

    /// Whether the caller may act on leases of other tokens.
    pub(super) fn may_act_for_others(&self) -> bool {
        !self.has_token || self.role >= Role::Operator
    }

    /// Rejects a caller whose token did not acquire this lease or this ticket.
    pub(crate) fn must_own(&self, request: &LockRequest) -> ApiResult<()> {
        let owner = request.metadata.get(TOKEN);
        // A lease without an owner was acquired by a process that uses the engine directly, such as
        // this server for an execution.
        if owner == Some(self.name.as_str()) || self.may_act_for_others() {
            return Ok(());
        }
        let description =
            owner.map_or_else(|| "another process".to_owned(), |owner| format!("the token '{owner}'"));
        let problem =
            Problem::new("FORBIDDEN", format!("this lease belongs to {description}, not to '{}'", self.name));
        Err(problem.hint("use the token that acquired the lease, or the token of an operator"))
    }

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

    /// Records the caller as the starter of an execution, in a task of a workflow's queue. A name
    /// in the request is kept beside the name of the token, as in `ada@laptop via ci`. Without API
    /// tokens nothing is changed.
    pub(crate) fn sign_start(&self, new: &mut NewTask) {
        let fingerprint = new.payload.fingerprint();
        if let Some(signed) = self.signed_start(&new.queue, &new.payload) {
            new.payload = signed;
            // The key must keep identifying the payload that the caller sent, not the signed one.
            new.fingerprint.get_or_insert(fingerprint);
        }
    }

    /// Returns the payload of such a task with the caller's name in it, or `None` if no change is
    /// needed.
    pub(crate) fn signed_start(&self, queue: &QueueName, payload: &Payload) -> Option<Payload> {
        if !self.has_token || WorkflowName::of_queue(queue).is_none() {
            return None;
        }
        // A payload that is not an `ExecutionSpec` is only an input and has no starter.
        let mut spec: ExecutionSpec = payload.read().ok()?;
        let claimed = spec.started_by().and_then(|name| Holder::new(name).ok());
        let name = claimed.map_or_else(|| self.name.clone(), |claimed| self.signed(claimed).to_string());
        spec.facts.set(ExecutionSpec::STARTED_BY, name).ok()?;
        Payload::of(&spec).ok()
    }
}

/// Cached owners of leases and tickets that this server granted or looked up. The key is the lock name
/// together with the lease id, because callers choose lease ids and may have seen an id of another lock.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<(LockName, LeaseId), Box<str>>>);

impl Owners {
    /// Caches the owner of the lease or of the ticket that this request has.
    pub(crate) fn record(&self, name: &LockName, request: &LockRequest) {
        if let Some(owner) = request.metadata.get(TOKEN) {
            let mut owners = locked(&self.0);
            if owners.len() >= MAX_CACHED {
                owners.clear();
            }
            owners.insert((name.clone(), request.lease_id), owner.into());
        }
    }

    pub(crate) fn remove(&self, name: &LockName, id: LeaseId) {
        locked(&self.0).remove(&(name.clone(), id));
    }

    /// Rejects a caller that does not own the lease or the ticket with this id.
    pub(crate) async fn check(
        &self,
        store: &dyn Store,
        identity: &Identity,
        name: &LockName,
        id: LeaseId,
    ) -> ApiResult<()> {
        if identity.may_act_for_others() {
            return Ok(());
        }
        let is_own = locked(&self.0).get(&(name.clone(), id)).map(|owner| **owner == identity.name);
        if is_own == Some(true) {
            return Ok(());
        }
        let peek = store.locks().peek(name, &id).await?;
        if let Some(lease) = &peek.lease {
            self.record(name, &lease.request);
            return identity.must_own(&lease.request);
        }
        // A ticket ends, so a lock in which nothing will end has no ticket: its queue need not be read.
        if peek.wake_at.is_none() {
            return Ok(());
        }
        let Some(lock) = store.locks().get(name).await? else { return Ok(()) };
        let mut tickets = lock.waiters.iter().map(|ticket| &ticket.request);
        // The ticket may have become a lease since the first read.
        let lease = lock.lease(&id).map(|lease| &lease.request);
        let found = lease.or_else(|| tickets.find(|request| request.lease_id == id));
        found.map_or(Ok(()), |request| {
            self.record(name, request);
            identity.must_own(request)
        })
    }
}

/// Cached owners of task leases that were acquired through this server or looked up.
#[derive(Default)]
pub(crate) struct TaskOwners(Mutex<HashSet<(TaskId, Token, WorkerTag)>>);

impl TaskOwners {
    pub(crate) fn record(&self, identity: &Identity, tasks: &[Task]) {
        let Some(tag) = identity.worker_tag() else { return };
        let mut cached = locked(&self.0);
        if cached.len() + tasks.len() > MAX_CACHED {
            cached.clear();
        }
        cached.extend(tasks.iter().filter(|task| identity.owns(task)).map(|task| (task.id, task.token, tag)));
    }

    /// Rejects a caller that does not own one of these leases. A lease that has ended, or that has not been
    /// granted yet, belongs to no caller: its token is replaced by one that no lease has, and the store
    /// responds that the lease is lost. Otherwise a caller that guesses the token of the next lease could act
    /// on a lease that another worker gets after this check.
    pub(crate) async fn check(
        &self,
        store: &dyn TaskStore,
        identity: &Identity,
        leases: Vec<(TaskId, &mut Token)>,
    ) -> ApiResult<()> {
        let is_unrestricted = identity.may_act_for_others() && !identity.is_scoped();
        let Some(tag) = identity.worker_tag().filter(|_| !is_unrestricted) else { return Ok(()) };
        let unknown: Vec<_> = {
            let cached = locked(&self.0);
            leases.into_iter().filter(|(id, token)| !cached.contains(&(*id, **token, tag))).collect()
        };
        for (id, token) in unknown {
            if let Some(task) = store.get(id).await?
                && task.token == *token
            {
                identity.must_reach_queue(&task.queue)?;
                identity.must_own_task(&task)?;
                self.record(identity, &[task]);
            } else {
                *token = NO_LEASE;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold::model::{
        AttemptResult, ExecutionInput, HeartbeatResult, HeldTask, LeaseTasks, Settle, Settled, TaskState,
        Timestamp, Ttl, WorkerInfo,
    };
    use leasehold::store::Clock;
    use leasehold::store::memory::MemoryStore;
    use uuid::Uuid;

    use super::*;
    use crate::access::Role;

    fn identity(has_token: bool) -> Identity {
        Identity { name: "ci".to_owned(), role: Role::Worker, has_token, scopes: Vec::new() }
    }

    fn started_by(identity: &Identity, claimed: Option<&str>) -> Option<String> {
        let mut spec = ExecutionSpec::new(ExecutionInput::of(&1).unwrap());
        if let Some(claimed) = claimed {
            spec.facts.set(ExecutionSpec::STARTED_BY, claimed).unwrap();
        }
        let queue = WorkflowName::new("deploy").unwrap().queue();
        let payload = Payload::of(&spec).unwrap();
        let mut new = NewTask::new(TaskId::from_uuid(Uuid::nil()), queue, payload.clone());
        identity.sign_start(&mut new);
        if new.payload != payload {
            assert_eq!(new.fingerprint, Some(payload.fingerprint()), "the key identifies the same payload");
        }
        new.payload.read::<ExecutionSpec>().unwrap().started_by().map(str::to_owned)
    }

    #[test]
    fn a_start_records_its_token_beside_a_claimed_name() {
        let token = identity(true);
        assert_eq!(started_by(&token, None).as_deref(), Some("ci"));
        assert_eq!(started_by(&token, Some("ada@laptop")).as_deref(), Some("ada@laptop via ci"));
        assert_eq!(started_by(&token, Some("ci")).as_deref(), Some("ci"));
        assert_eq!(started_by(&identity(false), Some("ada@laptop")).as_deref(), Some("ada@laptop"));
        let plain = Payload::of(&serde_json::json!({"a": 1})).unwrap();
        assert_eq!(token.signed_start(&QueueName::new("mail").unwrap(), &plain), None);
        assert_eq!(token.signed_start(&WorkflowName::new("w").unwrap().queue(), &plain), None);
    }

    /// The lease is granted between the check and the call.
    #[tokio::test]
    async fn a_guessed_token_acts_on_no_later_lease() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let store = MemoryStore::with_clock(Clock::manual(now));
        let (tasks, owners, eve) = (store.tasks().unwrap(), TaskOwners::default(), identity(true));
        let (id, queue) = (TaskId::from_uuid(Uuid::from_u128(1)), QueueName::new("mail").unwrap());
        tasks.enqueue(&[NewTask::new(id, queue.clone(), Payload::default())]).await.unwrap();
        let guess = Token::new(now.as_micros()).unwrap();
        let mut settle = [Settle { id, token: guess, verdict: AttemptResult::Done(None) }];
        let mut held = [HeldTask::new(id, guess)];
        let leases = vec![(id, &mut settle[0].token), (id, &mut held[0].token)];
        assert!(owners.check(tasks, &eve, leases).await.is_ok());
        let worker = WorkerId::from_uuid(Uuid::from_u128(2));
        let request = LeaseTasks::new(worker, vec![queue], 1, Ttl::from_secs(30));
        let task = tasks.lease(&request).await.unwrap().tasks.remove(0);
        assert_eq!(task.token, guess);
        assert_eq!(tasks.settle(&settle).await.unwrap(), [Settled::Lost]);
        let beats = tasks.heartbeat(&WorkerInfo::only(worker), &held, Ttl::from_secs(600)).await.unwrap();
        assert_eq!(beats, [HeartbeatResult::Lost]);
        assert_eq!(tasks.get(id).await.unwrap().unwrap().state, TaskState::Running);
        // The same token of the lease that exists now is rejected.
        let mut token = guess;
        assert!(owners.check(tasks, &eve, vec![(id, &mut token)]).await.is_err());
    }
}
