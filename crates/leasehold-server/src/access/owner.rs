//! Ownership of lock leases: a lease belongs to the API token that acquired it. The lease id and
//! the fencing token are visible to every reader and grant no access.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::model::{Ask, Holder, Lease, LeaseId, LockName, Metadata};
use leasehold::store::Store;

use super::Role;
use super::authenticator::Identity;
use crate::problem::{ApiResult, Problem};

/// Metadata key under which a lease stores the name of its API token. Values that callers send
/// under this key are discarded.
const TOKEN: &str = "token";
/// Maximum number of leases whose owners are cached; the owners of others are read from the store.
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

    /// Returns the actor for the history: the claimed name, and the token that the request carried.
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
    pub(crate) fn must_own(&self, request: &Ask) -> ApiResult<()> {
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
}

/// Cached owners of leases that this server granted or looked up. The key is the lock name together
/// with the lease id, because callers choose lease ids and may have seen an id of another lock.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<(LockName, LeaseId), Box<str>>>);

impl Owners {
    /// Caches the owner of a lease.
    pub(crate) fn record(&self, name: &LockName, lease: &Lease) {
        if let Some(owner) = lease.ask.metadata.get(TOKEN) {
            let mut owners = self.owners();
            if owners.len() >= MAX_CACHED {
                owners.clear();
            }
            owners.insert((name.clone(), lease.ask.lease_id), owner.into());
        }
    }

    /// Removes a lease that has ended.
    pub(crate) fn remove(&self, name: &LockName, id: LeaseId) {
        self.owners().remove(&(name.clone(), id));
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
        let is_own = self.owners().get(&(name.clone(), id)).map(|owner| **owner == identity.name);
        if is_own == Some(true) {
            return Ok(());
        }
        if let Some(lease) = store.locks().peek(name, &id).await?.lease {
            self.record(name, &lease);
            return identity.must_own(&lease.ask);
        }
        let lock = store.locks().get(name).await?;
        let ticket =
            lock.as_ref().and_then(|lock| lock.waiters.iter().find(|ticket| ticket.ask.lease_id == id));
        ticket.map_or(Ok(()), |ticket| identity.must_own(&ticket.ask))
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<(LockName, LeaseId), Box<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
