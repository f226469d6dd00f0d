//! Short test of a store without faults: clients with connections of their own acquire one lock at
//! the same time, and exactly one of them may win.

use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold::model::{
    Acquire, HeldBy, Holder, LeaseId, LeaseRef, LockName, LockOp, LockRequest, Outcome, Release, Ttl,
    ValidationError, Withdraw,
};
use leasehold::store::Hosts;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::Error;

/// Number of clients.
const CLIENTS: usize = 16;

/// Number of clients of an engine that limits the rate of changes.
const CLIENTS_OF_GITHUB: usize = 4;

/// Maximum number of rounds.
const ROUNDS: u32 = 20;

/// Time after which no further round begins.
const TIME: Duration = Duration::from_millis(1500);

/// TTL of the leases: a lease that cannot be released ends soon.
const TTL: Ttl = Ttl::from_secs(30);

/// Result of a race.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Race {
    /// Number of clients, each with connections of its own.
    pub clients: usize,
    /// Number of rounds.
    pub rounds: u32,
    /// Number of requests whose outcome is not known.
    pub failed: u32,
    /// What was violated.
    pub violations: Vec<String>,
}

/// Races clients for a lock that no other program uses, and releases it. `open` opens the store for
/// one client.
pub async fn race(open: impl AsyncFn() -> leasehold::Result<Leasehold>) -> Result<Race, Error> {
    let first = open().await?;
    let capabilities = first.capabilities();
    let clients = if capabilities.engine == "github" { CLIENTS_OF_GITHUB } else { CLIENTS };
    let mut stores = vec![first.store()];
    while stores.len() < clients {
        // A store that exists in this process only has one connection.
        let is_shared = capabilities.hosts == Hosts::OneProcess;
        stores.push(if is_shared { first.store() } else { open().await?.store() });
    }
    let ttl = TTL.max(capabilities.min_ttl);
    let name = lock_name(capabilities.forgets_locks).map_err(leasehold::Error::from)?;
    let holder = Holder::new("leasehold doctor").map_err(leasehold::Error::from)?;
    let mut race = Race { clients, rounds: 0, failed: 0, violations: Vec::new() };
    let (started, mut newest) = (Instant::now(), 0);
    while race.rounds < ROUNDS && (race.rounds == 0 || started.elapsed() < TIME) {
        race.rounds += 1;
        let mut calls = JoinSet::new();
        let new_id = || LeaseId::from_uuid(uuid::Uuid::now_v7());
        let leases: Vec<LeaseId> = stores.iter().map(|_| new_id()).collect();
        let own: Vec<LeaseRef> = leases.iter().map(LeaseRef::of).collect();
        for (client, store) in stores.iter().enumerate() {
            let lease_id = leases[client];
            let request = LockRequest::new(lease_id, holder.clone(), ttl).into();
            let op = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
            let (store, name) = (store.clone(), name.clone());
            calls.spawn(async move { (client, lease_id, store.locks().apply(&name, &op).await) });
        }
        let (mut winners, mut is_known) = (Vec::new(), true);
        while let Some(call) = calls.join_next().await {
            let (client, lease_id, outcome) = call.map_err(std::io::Error::other)?;
            let is_own = |held: &HeldBy| held.lease.as_ref().is_some_and(|lease| own.contains(lease));
            match outcome {
                Ok(Outcome::Granted(lease)) => winners.push((client, lease_id, lease.token)),
                Ok(Outcome::Conflict(conflict)) if conflict.holders.iter().all(is_own) => {}
                // Held by another caller, or not known.
                Ok(_) | Err(_) => {
                    is_known = false;
                    race.failed += 1;
                }
            }
        }
        let round = race.rounds;
        match winners.len() {
            0 if is_known => race.violations.push(format!("no client is granted the lock in round {round}")),
            0 | 1 => {}
            number => {
                race.violations
                    .push(format!("{number} clients are granted the lock at once in round {round}"));
            }
        }
        for (client, lease_id, token) in &winners {
            if token.get() <= newest {
                let token = token.get();
                race.violations
                    .push(format!("token {token} of round {round} is not newer than token {newest}"));
            }
            newest = newest.max(token.get());
            let release = LockOp::Release(Release { lease_id: *lease_id, token: *token, at_least: None });
            stores[*client].locks().apply(&name, &release).await?;
        }
        if !is_known {
            // A request without an answer may have been granted the lock.
            for (store, lease_id) in stores.iter().zip(leases) {
                store.locks().apply(&name, &LockOp::Withdraw(Withdraw { lease_id })).await?;
            }
        }
    }
    Ok(race)
}

/// Returns the name of the lock: one that was never used before, unless the engine would keep it for
/// ever.
fn lock_name(forgets_locks: bool) -> Result<LockName, ValidationError> {
    if forgets_locks {
        LockName::new(format!("leasehold-doctor/{}", uuid::Uuid::now_v7()))
    } else {
        LockName::new("leasehold-doctor")
    }
}
