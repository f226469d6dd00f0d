//! State at one moment: the lock, the workers, everything in flight, and the audit memory.

use leasehold_model::{Fence, LeaseId, LockName, LockRecord, Timestamp, Token, TokenFloor, Ttl};
use uuid::Uuid;

use super::config::Config;
use super::properties::Broken;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) record: LockRecord,
    /// Whether the lock has no record: then `record` is meaningless.
    pub(super) is_forgotten: bool,
    /// Minimum token of the store.
    pub(super) floor: TokenFloor,
    pub(super) workers: Vec<Worker>,
    /// Requests in flight. Sorted, because the network keeps no order. A lost message is one that
    /// is never delivered: that needs no action.
    pub(super) requests: Vec<Request>,
    pub(super) replies: Vec<Reply>,
    pub(super) writes: Vec<Write>,
    /// Resource that checks tokens.
    pub(super) fence: Fence,
    /// Token that the admin has read.
    pub(super) admin_read: Option<Token>,
    /// For each sweeper that has read and not yet acted: the requests of dead workers.
    pub(super) sweeper_reads: Vec<Vec<LeaseId>>,
    pub(super) left: Left,
    pub(super) memory: Memory,
    /// Properties that the last step broke.
    pub(super) broken: Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Worker {
    /// Number of the worker's newest request.
    pub(super) attempt: u8,
    /// How often that request was sent.
    pub(super) sent: u8,
    pub(super) renewed: u8,
    pub(super) phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// Has sent a request, and may be waiting in the queue.
    Requesting,
    /// Believes that it holds the lock, or did.
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
    pub(super) operation: Operation,
    /// Time at which the request was sent; the start of time if the time does not matter.
    pub(super) sent: Timestamp,
    /// Minimum token at that time. No correct rule uses it.
    pub(super) floor: TokenFloor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operation {
    Acquire { queue: bool },
    Renew(Token),
    Release(Token),
    Withdraw,
}

/// Response, as far as the worker acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reply {
    pub(super) lease_id: LeaseId,
    pub(super) sent: Timestamp,
    pub(super) response: Response,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Response {
    /// Granted or renewed, for this time.
    Granted(Token, Ttl),
    Conflict,
    Lost(Token),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Write {
    pub(super) lease_id: LeaseId,
    pub(super) token: Token,
}

/// How often events may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) writes: u8,
    pub(super) crashes: u8,
    pub(super) forces: u8,
    pub(super) stops: u8,
    pub(super) sweeps: u8,
    pub(super) duplicates: u8,
    pub(super) deletions: u8,
    pub(super) clock_resets: u8,
}

/// Audit memory of the past, apart from the record: mutants cannot change it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Memory {
    /// Highest token of any grant.
    pub(super) highest: Token,
    /// Grants that still matter, in order.
    pub(super) grants: Vec<Write>,
    /// Leases that were ended by force or stolen: their holders may go on believing.
    pub(super) taken: Vec<Write>,
    /// Tickets in the order of their creation, each with its time.
    pub(super) arrivals: Vec<(LeaseId, Timestamp)>,
    /// Last write that the resource accepted.
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
            admin_read: None,
            sweeper_reads: Vec::new(),
            left: Left {
                writes: config.writes,
                crashes: config.crashes,
                forces: config.forces,
                stops: config.stops,
                sweeps: config.sweeps,
                duplicates: config.duplicates,
                deletions: config.deletions,
                clock_resets: config.clock_resets,
            },
            memory: Memory::default(),
            broken: Broken::default(),
        }
    }

    /// Returns the request that a worker is busy with, if any.
    pub(super) fn current(&self, worker: usize) -> Option<LeaseId> {
        let Worker { attempt, phase, .. } = &self.workers[worker];
        match phase {
            Phase::Requesting | Phase::Holding(_) => Some(lease_id(worker, *attempt)),
            Phase::Idle | Phase::Crashed => None,
        }
    }

    pub(super) fn is_current(&self, id: &LeaseId) -> bool {
        self.current(owner(id)) == Some(*id)
    }

    pub(super) fn is_crashed(&self, id: &LeaseId) -> bool {
        self.workers[owner(id)].phase == Phase::Crashed
    }

    /// Whether all writes are in flight: delivering them before anything else loses no behaviour.
    pub(super) fn writes_are_out(&self) -> bool {
        self.left.writes == 0 && !self.writes.is_empty()
    }

    /// Makes states equal that no step and no property can distinguish, to visit fewer.
    pub(super) fn canonical(mut self) -> Self {
        let mut replies = std::mem::take(&mut self.replies);
        // No worker listens for these any more.
        replies.retain(|reply| self.is_current(&reply.lease_id));
        replies.sort_unstable();
        self.replies = replies;
        self.requests.sort_unstable();
        self.writes.sort_unstable();
        self.sweeper_reads.sort_unstable();

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

        // The rules count these but never read them; the audit has checked them by now.
        self.record.version = 0;
        for lease in &mut self.record.holders {
            lease.renewals = 0;
        }
        self
    }
}

/// Returns an id that contains its worker, so that the audit needs no table.
pub(super) fn lease_id(worker: usize, attempt: u8) -> LeaseId {
    LeaseId::from_uuid(Uuid::from_u128(worker as u128 * 100 + u128::from(attempt)))
}

pub(super) fn owner(id: &LeaseId) -> usize {
    usize::try_from(id.as_uuid().as_u128() / 100).expect("made by lease_id")
}
