//! What a world looks like at one moment: the lock, its workers, everything in flight, and what the auditor remembers.

use leasehold_model::{Fence, LeaseId, LockName, LockRecord, Timestamp, Token, TokenFloor, Ttl};
use uuid::Uuid;

use super::config::Config;
use super::promises::Broken;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) record: LockRecord,
    /// Whether the lock has no record: what `record` says is then nothing.
    pub(super) is_forgotten: bool,
    /// The store's floor of tokens.
    pub(super) floor: TokenFloor,
    pub(super) workers: Vec<Worker>,
    /// In flight. Kept sorted, as the network keeps no order. What is never delivered is lost: that needs no action.
    pub(super) requests: Vec<Request>,
    pub(super) replies: Vec<Reply>,
    pub(super) writes: Vec<Write>,
    /// The resource that checks tokens.
    pub(super) fence: Fence,
    /// The token that the admin has seen.
    pub(super) seen: Option<Token>,
    /// For each sweeper that has looked and not yet acted: the requests that it found to be a dead worker's.
    pub(super) looks: Vec<Vec<LeaseId>>,
    pub(super) left: Left,
    pub(super) memory: Memory,
    /// What the last step broke.
    pub(super) broken: Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Worker {
    /// The number of its newest request.
    pub(super) attempt: u8,
    /// How often that was sent.
    pub(super) asked: u8,
    pub(super) renewed: u8,
    pub(super) phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// It has asked, and may be waiting in the queue.
    Asking,
    /// It believes that it holds the lock, or did.
    Holding(Belief),
    Crashed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Belief {
    pub(super) token: Token,
    pub(super) until: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Request {
    pub(super) lease_id: LeaseId,
    pub(super) want: Want,
    /// When it was sent; the start of time if nobody will ever ask.
    pub(super) sent: Timestamp,
    /// The floor at that time. No right rule asks for it.
    pub(super) floor: TokenFloor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Want {
    Acquire { queue: bool },
    Renew(Token),
    Release(Token),
    Leave,
}

/// An answer, as far as the worker acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reply {
    pub(super) lease_id: LeaseId,
    pub(super) sent: Timestamp,
    pub(super) answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Answer {
    /// Granted or renewed, for so long.
    Yours(Token, Ttl),
    Busy,
    Lost(Token),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Write {
    pub(super) lease_id: LeaseId,
    pub(super) token: Token,
}

/// How often things may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) writes: u8,
    pub(super) crashes: u8,
    pub(super) forces: u8,
    pub(super) stops: u8,
    pub(super) sweeps: u8,
    pub(super) duplicates: u8,
    pub(super) forgets: u8,
    pub(super) set_backs: u8,
}

/// What the auditor remembers of the past, apart from the record: wrong rules cannot touch it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Memory {
    /// The highest token of any grant.
    pub(super) highest: Token,
    /// The grants that still matter, in the order in which they were made.
    pub(super) grants: Vec<Write>,
    /// Leases that were taken from their holders by force or by a thief: these may go on believing.
    pub(super) taken: Vec<Write>,
    /// The tickets, in the order in which they were drawn, and when.
    pub(super) arrivals: Vec<(LeaseId, Timestamp)>,
    /// The last write that the resource accepted.
    pub(super) accepted: Option<Write>,
}

impl State {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            now: config.start(),
            record: LockRecord::new(LockName::new("l").unwrap()),
            is_forgotten: false,
            floor: TokenFloor::default(),
            workers: vec![Worker::default(); config.workers.len()],
            requests: Vec::new(),
            replies: Vec::new(),
            writes: Vec::new(),
            fence: Fence::default(),
            seen: None,
            looks: Vec::new(),
            left: Left {
                writes: config.writes,
                crashes: config.crashes,
                forces: config.forces,
                stops: config.stops,
                sweeps: config.sweeps,
                duplicates: config.duplicates,
                forgets: config.forgets,
                set_backs: config.set_backs,
            },
            memory: Memory::default(),
            broken: Broken::default(),
        }
    }

    /// The request that a worker is busy with, if it is busy with one.
    pub(super) fn current(&self, worker: usize) -> Option<LeaseId> {
        let Worker { attempt, phase, .. } = &self.workers[worker];
        match phase {
            Phase::Asking | Phase::Holding(_) => Some(lease_id(worker, *attempt)),
            Phase::Idle | Phase::Crashed => None,
        }
    }

    pub(super) fn is_current(&self, id: &LeaseId) -> bool {
        self.current(owner(id)) == Some(*id)
    }

    pub(super) fn is_crashed(&self, id: &LeaseId) -> bool {
        self.workers[owner(id)].phase == Phase::Crashed
    }

    /// All writes that there will be are in flight: nothing is lost by letting them in before anything else happens.
    pub(super) fn writes_are_out(&self) -> bool {
        self.left.writes == 0 && !self.writes.is_empty()
    }

    /// Makes states equal that no step and no promise can tell apart: fewer to visit.
    pub(super) fn canonical(mut self) -> Self {
        let mut replies = std::mem::take(&mut self.replies);
        // Nobody listens for these any more.
        replies.retain(|reply| self.is_current(&reply.lease_id));
        replies.sort_unstable();
        self.replies = replies;
        self.requests.sort_unstable();
        self.writes.sort_unstable();
        self.looks.sort_unstable();

        let mut memory = std::mem::take(&mut self.memory);
        memory.taken.retain(|lease| self.is_current(&lease.lease_id));
        if self.left.writes == 0 && self.writes.is_empty() {
            (memory.accepted, self.fence) = (None, Fence::default());
            memory.grants.clear();
        }
        memory.grants.retain(|grant| {
            self.is_current(&grant.lease_id)
                || self.writes.contains(grant)
                || memory.accepted.as_ref() == Some(grant)
        });
        self.memory = memory;

        // Counted by the rules, read by none of them; the auditor has looked at them by now.
        self.record.version = 0;
        for lease in &mut self.record.holders {
            lease.renewals = 0;
        }
        self
    }
}

/// Ids tell whose they are, so that the auditor needs no table.
pub(super) fn lease_id(worker: usize, attempt: u8) -> LeaseId {
    LeaseId::from_uuid(Uuid::from_u128(worker as u128 * 100 + u128::from(attempt)))
}

pub(super) fn owner(id: &LeaseId) -> usize {
    usize::try_from(id.as_uuid().as_u128() / 100).expect("made by lease_id")
}
