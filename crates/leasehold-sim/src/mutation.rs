//! Planted mistakes. Some are planted in the client itself; those that a client makes by what it sends,
//! or by how it reads an answer, are made here, between the client and its store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use leasehold::model::{
    AttemptResult, Enqueued, Lease, LeaseId, LockOp, NewTask, Outcome, Queued, Settle, Settled, TaskId,
    TaskState, Token, Ttl,
};
use leasehold::testing::Mutant;
use leasehold::{BootInstant, Result};

/// Planted mistake of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutation {
    /// Mistake in the code of the client.
    Client(Mutant),
    /// A guard releases its lease with an older token.
    ReleasesWithAnOldToken,
    /// A guard takes the answer that its lease does not exist for a renewal.
    IgnoresNotHeld,
    /// A guard measures its lease from the response, not from the request.
    MeasuresFromTheResponse,
    /// A waiter that gives up leaves its ticket in the queue.
    ForgetsItsTicket,
    /// A waiter does not refresh its ticket.
    DoesNotRefreshItsTicket,
    /// A caller whose request is in doubt neither confirms nor withdraws it.
    LeavesRequestsInDoubt,
    /// A caller repeats a request whose response was lost under another id.
    RepeatsUnderAnotherId,
    /// A client waits for a lost message without a limit.
    WaitsForever,
    /// A worker whose settlement was lost gives the task back instead of settling it again.
    SettlesAgainAsNew,
    /// A worker takes a lost settlement for a success.
    ReportsLostSettlements,
    /// Tasks of a schedule have no key.
    TicksWithoutKey,
    /// A caller takes the loss of an added task for a success.
    AcknowledgesLostTasks,
}

impl Mutation {
    /// All planted mistakes.
    pub const ALL: [Self; 21] = [
        Self::Client(Mutant::RenewsLate),
        Self::Client(Mutant::StopsRenewingAfterOneFailure),
        Self::Client(Mutant::IgnoresTheDeadline),
        Self::Client(Mutant::BelievesALateGrant),
        Self::Client(Mutant::IgnoresALossWhileAcquiring),
        Self::Client(Mutant::StartsWithoutAValidLease),
        Self::Client(Mutant::WorksAfterLostHeartbeats),
        Self::Client(Mutant::MeasuresTasksFromTheResponse),
        Self::Client(Mutant::RunsWithoutTheLock),
        Self::ReleasesWithAnOldToken,
        Self::IgnoresNotHeld,
        Self::MeasuresFromTheResponse,
        Self::ForgetsItsTicket,
        Self::DoesNotRefreshItsTicket,
        Self::LeavesRequestsInDoubt,
        Self::RepeatsUnderAnotherId,
        Self::WaitsForever,
        Self::SettlesAgainAsNew,
        Self::ReportsLostSettlements,
        Self::TicksWithoutKey,
        Self::AcknowledgesLostTasks,
    ];

    /// Returns the mistake in the code of the client.
    pub fn in_client(self) -> Option<Mutant> {
        if let Self::Client(mutant) = self { Some(mutant) } else { None }
    }

    /// Whether the mistake shows only with tasks.
    pub fn needs_tasks(self) -> bool {
        matches!(
            self,
            Self::Client(
                Mutant::StartsWithoutAValidLease
                    | Mutant::WorksAfterLostHeartbeats
                    | Mutant::MeasuresTasksFromTheResponse
                    | Mutant::RunsWithoutTheLock
            ) | Self::SettlesAgainAsNew
                | Self::ReportsLostSettlements
                | Self::TicksWithoutKey
                | Self::AcknowledgesLostTasks
        )
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(mutant) => write!(f, "{mutant:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}

impl std::str::FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mutation| mutation.to_string() == text);
        found.ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(ToString::to_string).collect();
            format!("there is no mutant '{text}'; there are {}", all.join(", "))
        })
    }
}

/// What a process with a planted mistake remembers.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Ids that requests are sent under instead of their own.
    other_ids: BTreeMap<LeaseId, LeaseId>,
    queued: BTreeSet<LeaseId>,
    known: BTreeMap<LeaseId, Lease>,
    places: BTreeMap<LeaseId, Queued>,
    unsettled: BTreeSet<(TaskId, Token)>,
}

impl Memory {
    /// Returns the operation that the mistaken client sends, or the answer that it assumes instead.
    pub(crate) fn sent(&mut self, mutation: Mutation, op: &LockOp) -> Result<LockOp, Outcome> {
        let mut op = op.clone();
        match (mutation, &mut op) {
            (Mutation::ReleasesWithAnOldToken, LockOp::Release(release)) => {
                release.token = Token::new(release.token.get() - 1).unwrap_or(release.token);
            }
            (Mutation::ForgetsItsTicket, LockOp::Acquire(acquire)) => {
                let id = acquire.request.lease_id;
                if acquire.queue.is_some() {
                    self.queued.insert(id);
                } else if self.queued.contains(&id) {
                    acquire.queue = Some(Ttl::from_secs(60));
                }
            }
            (Mutation::LeavesRequestsInDoubt | Mutation::ForgetsItsTicket, LockOp::Withdraw(_)) => {
                return Err(Outcome::Withdrawn);
            }
            (Mutation::DoesNotRefreshItsTicket, LockOp::Acquire(acquire)) if acquire.queue.is_some() => {
                if let Some(queued) = self.places.get(&acquire.request.lease_id) {
                    return Err(Outcome::Queued(queued.clone()));
                }
            }
            (Mutation::RepeatsUnderAnotherId, LockOp::Acquire(acquire)) => {
                if let Some(other) = self.other_ids.get(&acquire.request.lease_id) {
                    let mut request = (*acquire.request).clone();
                    request.lease_id = *other;
                    acquire.request = request.into();
                }
            }
            (Mutation::RepeatsUnderAnotherId, LockOp::Withdraw(withdraw)) => {
                withdraw.lease_id = *self.other_ids.get(&withdraw.lease_id).unwrap_or(&withdraw.lease_id);
            }
            _ => {}
        }
        Ok(op)
    }

    /// Returns the answer as the mistaken client reads it.
    pub(crate) fn read(
        &mut self,
        mutation: Mutation,
        op: &LockOp,
        sent: BootInstant,
        answer: Result<Outcome>,
    ) -> Result<Outcome> {
        match (mutation, op, answer) {
            (Mutation::DoesNotRefreshItsTicket, LockOp::Acquire(acquire), Ok(Outcome::Queued(queued))) => {
                self.places.insert(acquire.request.lease_id, queued.clone());
                Ok(Outcome::Queued(queued))
            }
            (Mutation::IgnoresNotHeld, LockOp::Acquire(_), Ok(Outcome::Granted(lease))) => {
                self.known.insert(lease.request.lease_id, lease.clone());
                Ok(Outcome::Granted(lease))
            }
            (Mutation::IgnoresNotHeld, LockOp::Renew(renew), Ok(Outcome::NotHeld(now))) => {
                let known = self.known.get(&renew.lease_id).cloned();
                Ok(known.map_or(Outcome::NotHeld(now), Outcome::Renewed))
            }
            (
                Mutation::MeasuresFromTheResponse,
                _,
                Ok(Outcome::Granted(mut lease) | Outcome::Renewed(mut lease)),
            ) => {
                let late = BootInstant::now().after(sent);
                lease.expires_at = lease.expires_at.plus(Ttl::new(late).unwrap_or(Ttl::from_millis(1)));
                Ok(if matches!(op, LockOp::Acquire(_)) {
                    Outcome::Granted(lease)
                } else {
                    Outcome::Renewed(lease)
                })
            }
            (Mutation::RepeatsUnderAnotherId, LockOp::Acquire(acquire), Err(error)) => {
                let number = uuid::Uuid::from_u128(fastrand::u128(..));
                self.other_ids.insert(acquire.request.lease_id, LeaseId::from_uuid(number));
                Err(error)
            }
            (_, _, answer) => answer,
        }
    }

    /// Returns the tasks that the mistaken client adds.
    pub(crate) fn added(mutation: Mutation, new: &[NewTask]) -> Vec<NewTask> {
        let is_tick =
            |new: &NewTask| new.key.as_ref().is_some_and(|key| key.as_str().starts_with("schedule "));
        let mut new = new.to_vec();
        for new in &mut new {
            if mutation == Mutation::TicksWithoutKey && is_tick(new) {
                new.key = None;
            }
        }
        new
    }

    /// Returns the answer to an enqueue as the mistaken client reads it.
    pub(crate) fn read_added(
        mutation: Mutation,
        new: &[NewTask],
        answer: Result<Vec<Enqueued>>,
    ) -> Result<Vec<Enqueued>> {
        match answer {
            Err(_) if mutation == Mutation::AcknowledgesLostTasks => {
                Ok(new.iter().map(|new| Enqueued::Added(new.id)).collect())
            }
            answer => answer,
        }
    }

    /// Returns the settlements that the mistaken client sends.
    pub(crate) fn settled(&mut self, mutation: Mutation, settle: &[Settle]) -> Vec<Settle> {
        let mut settle = settle.to_vec();
        for settle in &mut settle {
            let is_repeated = !self.unsettled.insert((settle.id, settle.token));
            if mutation == Mutation::SettlesAgainAsNew && is_repeated {
                settle.result = AttemptResult::Return;
            }
        }
        settle
    }

    /// Returns the answer to settlements as the mistaken client reads it.
    pub(crate) fn read_settled(
        mutation: Mutation,
        settle: &[Settle],
        answer: Result<Vec<Settled>>,
    ) -> Result<Vec<Settled>> {
        match answer {
            Err(_) if mutation == Mutation::ReportsLostSettlements => {
                Ok(settle.iter().map(|_| Settled::Now(TaskState::Succeeded)).collect())
            }
            answer => answer,
        }
    }
}
