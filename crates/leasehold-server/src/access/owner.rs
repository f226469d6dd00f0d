//! Ownership of leases: a lease on a lock or a task belongs to the API token that acquired it, and an
//! execution to the token that started it. The lease id and the fencing token are visible to every
//! reader and grant no access.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use futures_util::future;
use leasehold::BootInstant;
use leasehold::model::{
    Acquire, ExecutionSpec, Holder, Lease, LeaseId, LockName, LockOp, LockRequest, Metadata, NewTask,
    Payload, QueueName, Settle, Settled, Task, TaskId, Token, Ttl, WorkerId, WorkflowName,
};
use leasehold::store::protocol::WorkerTag;
use leasehold::store::{Store, TaskStore};

use super::Role;
use super::scope::Identity;
use super::token::VIA;
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
/// Number of tasks whose owners are read at the same time.
const CONCURRENT_READS: usize = 32;

impl Identity {
    /// Writes the name of the caller's token into the metadata of a lease. Drops the longest
    /// entries if there is no space.
    pub(crate) fn stamp(&self, metadata: &mut Metadata) {
        metadata.remove(TOKEN);
        if self.has_token {
            make_room_and_set(metadata, TOKEN, &self.name);
        }
    }

    /// Returns the actor for the history: the claimed name, and the token that the request carried; the token
    /// alone if both are too long together. `client/locks/in_doubt.rs` of the library recognizes these forms.
    pub(crate) fn signed(&self, claimed: Holder) -> Holder {
        if !self.has_token || claimed.as_str() == self.name {
            return claimed;
        }
        let name = Holder::new(self.name.as_str());
        Holder::new(format!("{claimed}{VIA}{}", self.name)).or(name).unwrap_or(claimed)
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

    /// Returns the tag that the leases of the caller's tasks must have; `None` if the caller may act on all
    /// leases.
    fn required_tag(&self) -> Option<WorkerTag> {
        let is_unrestricted = self.may_act_for_others() && !self.is_scoped();
        self.worker_tag().filter(|_| !is_unrestricted)
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
    /// needed. Drops the longest entries of the metadata if there is no space for the name, and omits the name if the payload
    /// would be too large: a name that a caller claims never stays alone.
    pub(crate) fn signed_start(&self, queue: &QueueName, payload: &Payload) -> Option<Payload> {
        if !self.has_token || WorkflowName::of_queue(queue).is_none() {
            return None;
        }
        // A payload that is not an `ExecutionSpec` is only an input and has no starter.
        let mut spec: ExecutionSpec = payload.read().ok()?;
        let claimed = spec.started_by().and_then(|name| Holder::new(name).ok());
        let name = claimed.map_or_else(|| self.name.clone(), |claimed| self.signed(claimed).to_string());
        make_room_and_set(&mut spec.metadata, ExecutionSpec::STARTED_BY, &name);
        let signed = Payload::of(&spec);
        let unnamed = |_| {
            spec.metadata.remove(ExecutionSpec::STARTED_BY);
            Payload::of(&spec)
        };
        signed.or_else(unnamed).ok()
    }

    /// Whether the caller's token started this execution, as [`Identity::sign_start`] has recorded it. No
    /// [`TokenName`](super::TokenName) has a part that could be the name of another token.
    pub(crate) fn has_started(&self, task: &Task) -> bool {
        let spec = WorkflowName::of_queue(&task.queue).map(|_| ExecutionSpec::of(task));
        spec.as_ref().and_then(ExecutionSpec::started_by).is_some_and(|starter| {
            let claimed = starter.strip_suffix(self.name.as_str());
            claimed.is_some_and(|claimed| claimed.is_empty() || claimed.ends_with(VIA))
        })
    }
}

/// Sets one entry. Drops the longest other entries if there is no space.
fn make_room_and_set(metadata: &mut Metadata, key: &str, value: &str) {
    metadata.remove(key);
    while metadata.set(key, value).is_err() {
        let largest = metadata.iter().max_by_key(|(key, value)| key.len() + value.len());
        let Some(largest) = largest.map(|(key, _)| key.to_owned()) else { return };
        metadata.remove(&largest);
    }
}

/// Map of the newest entries: when it is full, the older half is dropped.
struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: Hash + Eq, V> Recent<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= MAX_CACHED / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

/// What a request does with a lease id.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LeaseUse {
    /// Renews or releases the lease with this token.
    Lease(Token),
    /// Creates the ticket, or refreshes it for this time.
    Ticket(Ttl),
    /// Acquires without a ticket, or withdraws: a ticket or a lease with the id may end.
    Other,
}

impl LeaseUse {
    pub(crate) fn of(op: &LockOp) -> Self {
        match op {
            LockOp::Renew(renew) | LockOp::RenewLogged(renew) => Self::Lease(renew.token),
            LockOp::Release(release) => Self::Lease(release.token),
            LockOp::Acquire(Acquire { queue: Some(ttl), .. }) => Self::Ticket(*ttl),
            _ => Self::Other,
        }
    }
}

/// Cached owner of one lease, or of one ticket.
struct Owner {
    name: Box<str>,
    of: Owned,
}

enum Owned {
    Lease(Token),
    /// Ticket with its lifetime, and the time at which it ends unless it is refreshed.
    Ticket {
        ttl: Ttl,
        until: BootInstant,
    },
}

impl Owner {
    /// Whether the lease or the ticket that a request uses is the one of this entry, so that its owner need
    /// not be read. Callers choose ids: another caller may have got a later lease or ticket with the same
    /// id, also through another server.
    fn applies_to(&self, used: LeaseUse) -> bool {
        match (&self.of, used) {
            // No two leases of a lock have the same token.
            (Owned::Lease(own), LeaseUse::Lease(token)) => *own == token,
            // A shorter time could let the later ticket end.
            (Owned::Ticket { ttl, until }, LeaseUse::Ticket(refreshed)) => {
                *ttl <= refreshed && BootInstant::now() < *until
            }
            _ => false,
        }
    }
}

/// Cached owners of leases and tickets that this server granted or looked up. The key is the lock name
/// together with the lease id, because callers choose lease ids and may have seen an id of another lock.
#[derive(Default)]
pub(crate) struct Owners(Mutex<Recent<(LockName, LeaseId), Owner>>);

impl Owners {
    /// Caches the owner of a lease.
    pub(crate) fn record(&self, name: &LockName, lease: &Lease) {
        self.insert(name, &lease.request, Owned::Lease(lease.token));
    }

    /// Caches the owner of a ticket that a request has created or refreshed for `ttl`. `sent` is a time
    /// before that.
    pub(crate) fn record_ticket(&self, name: &LockName, request: &LockRequest, ttl: Ttl, sent: BootInstant) {
        self.insert(name, request, Owned::Ticket { ttl, until: sent.plus(ttl.as_duration()) });
    }

    fn insert(&self, name: &LockName, request: &LockRequest, of: Owned) {
        if let Some(owner) = request.metadata.get(TOKEN) {
            locked(&self.0).insert((name.clone(), request.lease_id), Owner { name: owner.into(), of });
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
        used: LeaseUse,
    ) -> ApiResult<()> {
        if identity.may_act_for_others() || self.is_known_owner(identity, name, id, used) {
            return Ok(());
        }
        let peek = store.locks().peek(name, &id).await?;
        if let Some(lease) = &peek.lease {
            self.record(name, lease);
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
        found.map_or(Ok(()), |request| identity.must_own(request))
    }

    fn is_known_owner(&self, identity: &Identity, name: &LockName, id: LeaseId, used: LeaseUse) -> bool {
        let owners = locked(&self.0);
        let owner = owners.get(&(name.clone(), id));
        owner.is_some_and(|owner| *owner.name == *identity.name && owner.applies_to(used))
    }
}

/// Cached owners of task leases that were acquired through this server or looked up.
#[derive(Default)]
pub(crate) struct TaskOwners(Mutex<Recent<(TaskId, Token), WorkerTag>>);

impl TaskOwners {
    pub(crate) fn record(&self, identity: &Identity, tasks: &[Task]) {
        let Some(tag) = identity.required_tag() else { return };
        let mut cached = locked(&self.0);
        for task in tasks.iter().filter(|task| identity.owns(task)) {
            cached.insert((task.id, task.token), tag);
        }
    }

    /// Removes the leases that these settlements have ended.
    pub(crate) fn remove_settled(&self, settle: &[Settle], settled: &[Settled]) {
        let ended = settle.iter().zip(settled).filter(|(_, settled)| **settled != Settled::Busy);
        self.remove(ended.map(|(settle, _)| (settle.id, settle.token)));
    }

    /// Removes leases that have ended.
    pub(crate) fn remove(&self, ended: impl Iterator<Item = (TaskId, Token)>) {
        let mut cached = locked(&self.0);
        for lease in ended {
            cached.remove(&lease);
        }
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
        let Some(tag) = identity.required_tag() else { return Ok(()) };
        let mut unknown: Vec<_> = {
            let cached = locked(&self.0);
            leases.into_iter().filter(|(id, token)| cached.get(&(*id, **token)) != Some(&tag)).collect()
        };
        for part in unknown.chunks_mut(CONCURRENT_READS) {
            let reads: Vec<_> = part.iter().map(|(id, _)| store.get(*id)).collect();
            let found = future::join_all(reads).await;
            for ((_, token), task) in part.iter_mut().zip(found) {
                match task? {
                    Some(task) if task.token == **token => {
                        identity.must_reach_queue(&task.queue)?;
                        identity.must_own_task(&task)?;
                        self.record(identity, &[task]);
                    }
                    _ => **token = NO_LEASE,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold::model::{
        AttemptResult, ExecutionInput, HeartbeatResult, HeldTask, LeaseTasks, MAX_PAYLOAD, TaskState,
        Timestamp, WorkerInfo,
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
            spec.metadata.set(ExecutionSpec::STARTED_BY, claimed).unwrap();
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

    /// However many entries the caller sends, and however large its input is.
    #[test]
    fn a_claimed_name_never_stays_alone() {
        let (token, queue) = (identity(true), WorkflowName::new("deploy").unwrap().queue());
        let claim = |input: &str| {
            let mut spec = ExecutionSpec::new(ExecutionInput::of(input).unwrap());
            spec.metadata.set(ExecutionSpec::STARTED_BY, "ada").unwrap();
            spec
        };
        let signed = |spec: &ExecutionSpec| {
            let signed = token.signed_start(&queue, &Payload::of(spec).unwrap()).unwrap();
            signed.read::<ExecutionSpec>().unwrap()
        };
        let mut full = claim("");
        while full.metadata.set(format!("entry {}", full.metadata.iter().count()), "x".repeat(1000)).is_ok() {
        }
        while full.metadata.set("rest", "x".repeat(1 + full.metadata.get("rest").map_or(0, str::len))).is_ok()
        {
        }
        assert_eq!(signed(&full).started_by(), Some("ada via ci"));
        let around = Payload::of(&claim("")).unwrap().as_str().len();
        let large = claim(&"x".repeat(MAX_PAYLOAD - around));
        assert_eq!(Payload::of(&large).unwrap().as_str().len(), MAX_PAYLOAD);
        assert_eq!(signed(&large).started_by(), None);
    }

    #[test]
    fn the_starter_of_an_execution_is_known_by_its_token() {
        let queue = WorkflowName::new("deploy").unwrap().queue();
        let has_started = |queue: &QueueName, starter: &str| {
            let mut spec = ExecutionSpec::new(ExecutionInput::of(&1).unwrap());
            spec.metadata.set(ExecutionSpec::STARTED_BY, starter).unwrap();
            let id = TaskId::from_uuid(Uuid::nil());
            let new = NewTask::new(id, queue.clone(), Payload::of(&spec).unwrap());
            identity(true).has_started(&Task::new(&new, Timestamp::from_micros(1)))
        };
        for starter in ["ci", "ada@laptop via ci", "eve via ci"] {
            assert!(has_started(&queue, starter), "{starter}");
        }
        for starter in ["eve", "ci via eve", "ada@ci", "via ci", "trigger ci"] {
            assert!(!has_started(&queue, starter), "{starter}");
        }
        assert!(!has_started(&QueueName::new("mail").unwrap(), "ci"), "no server signs other tasks");
    }

    #[test]
    fn a_full_map_keeps_its_newest_entries() {
        let mut map = Recent::default();
        for number in 0..3 * MAX_CACHED {
            map.insert(number, number);
        }
        assert!(map.young.len() + map.old.len() <= MAX_CACHED);
        let newest = 3 * MAX_CACHED - MAX_CACHED / 2;
        assert!((newest..3 * MAX_CACHED).all(|number| map.get(&number) == Some(&number)));
        map.remove(&newest);
        assert_eq!(map.get(&newest), None);
    }

    #[test]
    fn a_cached_owner_is_the_owner_of_one_lease_or_one_ticket() {
        let token = |number| Token::new(number).unwrap();
        let lease = Owner { name: "ci".into(), of: Owned::Lease(token(5)) };
        assert!(lease.applies_to(LeaseUse::Lease(token(5))));
        for used in [LeaseUse::Lease(token(6)), LeaseUse::Ticket(Ttl::from_secs(10)), LeaseUse::Other] {
            assert!(!lease.applies_to(used), "{used:?}");
        }
        let ticket =
            |until| Owner { name: "ci".into(), of: Owned::Ticket { ttl: Ttl::from_secs(600), until } };
        let (now, later) = (BootInstant::now(), BootInstant::now().plus(Ttl::from_secs(600).as_duration()));
        assert!(ticket(later).applies_to(LeaseUse::Ticket(Ttl::from_secs(600))));
        assert!(!ticket(now).applies_to(LeaseUse::Ticket(Ttl::from_secs(600))), "it may have ended");
        for used in [LeaseUse::Lease(token(5)), LeaseUse::Ticket(Ttl::from_secs(10)), LeaseUse::Other] {
            assert!(!ticket(later).applies_to(used), "{used:?}");
        }
    }

    #[tokio::test]
    async fn the_owners_of_settled_leases_are_not_kept() {
        let store = MemoryStore::new();
        let (tasks, owners, ci) = (store.tasks().unwrap(), TaskOwners::default(), identity(true));
        let queue = QueueName::new("mail").unwrap();
        let new = |number| {
            NewTask::new(TaskId::from_uuid(Uuid::from_u128(number)), queue.clone(), Payload::default())
        };
        tasks.enqueue(&(1..=100).map(new).collect::<Vec<_>>()).await.unwrap();
        let worker = ci.worker(WorkerId::from_uuid(Uuid::from_u128(2)));
        let request = LeaseTasks::new(worker, vec![queue.clone()], 100, Ttl::from_secs(600));
        let granted = tasks.lease(&request).await.unwrap().tasks;
        assert_eq!(granted.len(), 100);
        let end = |task: &Task| Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) };
        let mut settle: Vec<Settle> = granted.iter().map(end).collect();
        // The owners are read, as after a restart of the server.
        let leases = settle.iter_mut().map(|end| (end.id, &mut end.token)).collect();
        assert!(owners.check(tasks, &ci, leases).await.is_ok());
        assert_eq!(locked(&owners.0).young.len(), 100);
        let settled = tasks.settle(&settle).await.unwrap();
        assert!(settled.iter().all(|settled| *settled == Settled::Now(TaskState::Succeeded)));
        owners.remove_settled(&settle, &settled);
        assert!(locked(&owners.0).young.is_empty());
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
        let mut settle = [Settle { id, token: guess, result: AttemptResult::Done(None) }];
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
