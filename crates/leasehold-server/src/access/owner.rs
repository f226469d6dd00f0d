//! Whose a lease is: the token that took it. Its id and fencing token can be seen by every reader, and open nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::model::{Ask, Holder, Lease, LeaseId, LockName, Metadata};
use leasehold::store::Store;

use super::Role;
use super::gate::Who;
use crate::problem::{Answer, Problem};

/// The fact in which a lease keeps the name of its token. What callers say under this name is not kept.
const TOKEN: &str = "token";
/// The number of leases whose owners are remembered; the owners of others are read from the store.
const REMEMBERED: usize = 50_000;

impl Who {
    /// Writes the caller's token into the facts of a lease. Makes room for it if need be.
    pub(crate) fn stamp(&self, metadata: &mut Metadata) {
        metadata.remove(TOKEN);
        if !self.has_token {
            return;
        }
        while metadata.set(TOKEN, self.name.as_str()).is_err() {
            let longest = metadata.iter().max_by_key(|(key, value)| key.len() + value.len());
            let Some(longest) = longest.map(|(key, _)| key.to_owned()) else { return };
            metadata.remove(&longest);
        }
    }

    /// What the history says of an act of this caller: what it says of itself, and whose token it came with.
    pub(crate) fn signed(&self, claimed: Holder) -> Holder {
        if !self.has_token || claimed.as_str() == self.name {
            return claimed;
        }
        let name = Holder::new(self.name.as_str());
        Holder::new(format!("{claimed} via {}", self.name)).or(name).unwrap_or(claimed)
    }

    /// Whether the caller may do as it likes with what others took.
    pub(super) fn may_act_for_others(&self) -> bool {
        !self.has_token || self.role >= Role::Operator
    }

    /// Refuses a caller whose token did not take this lease or draw this ticket.
    pub(crate) fn must_own(&self, ask: &Ask) -> Answer<()> {
        let owner = ask.metadata.get(TOKEN);
        // Without an owner it was taken by a process that uses the engine itself, such as this server for an execution.
        if owner == Some(self.name.as_str()) || self.may_act_for_others() {
            return Ok(());
        }
        let whose =
            owner.map_or_else(|| "another process".to_owned(), |owner| format!("the token '{owner}'"));
        let problem =
            Problem::new("FORBIDDEN", format!("this lease belongs to {whose}, not to '{}'", self.name));
        Err(problem.hint("use the token that took it, or that of an operator"))
    }
}

/// The owners of leases that this server has given out or looked up. Only that of one lock and one lease id together: an id is
/// chosen by its caller, who may have seen it elsewhere.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<(LockName, LeaseId), Box<str>>>);

impl Owners {
    /// Remembers whose a lease is.
    pub(crate) fn note(&self, name: &LockName, lease: &Lease) {
        if let Some(owner) = lease.ask.metadata.get(TOKEN) {
            let mut owners = self.owners();
            if owners.len() >= REMEMBERED {
                owners.clear();
            }
            owners.insert((name.clone(), lease.ask.lease_id), owner.into());
        }
    }

    /// Forgets a lease that has ended.
    pub(crate) fn forget(&self, name: &LockName, id: LeaseId) {
        self.owners().remove(&(name.clone(), id));
    }

    /// Refuses a caller to whom the lease or the ticket with this id does not belong.
    pub(crate) async fn check(
        &self,
        store: &dyn Store,
        who: &Who,
        name: &LockName,
        id: LeaseId,
    ) -> Answer<()> {
        if who.may_act_for_others() {
            return Ok(());
        }
        let is_ours = self.owners().get(&(name.clone(), id)).map(|owner| **owner == who.name);
        if is_ours == Some(true) {
            return Ok(());
        }
        if let Some(lease) = store.locks().peek(name, &id).await?.lease {
            self.note(name, &lease);
            return who.must_own(&lease.ask);
        }
        let record = store.locks().get(name).await?;
        let ticket =
            record.as_ref().and_then(|record| record.waiters.iter().find(|ticket| ticket.ask.lease_id == id));
        ticket.map_or(Ok(()), |ticket| who.must_own(&ticket.ask))
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<(LockName, LeaseId), Box<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
