//! Counters of an instrumented store by kind of call, what each outcome adds to them, and their snapshot.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Buckets;
use super::histogram::{CALL, HOLD, Histogram, WAIT};
use super::lease_tracker::{AttemptKind, LeaseTracker, PossibleTakeover};
use crate::Result;
use crate::model::{EventKind, Lease, LeaseId, LockName, LockOp, Outcome, Swept};
use crate::store::{BootInstant, RateLimit};

/// Number that only rises.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(super) struct Counters {
    leases: LeaseTracker,
    acquisitions: Counter,
    releases: Counter,
    conflicts: Counter,
    retries: Counter,
    failures: Counter,
    expired: Counter,
    stolen: Counter,
    forced: Counter,
    swept: Counter,
    acquire: Histogram,
    hold: Histogram,
    pub(super) task_leases: Counter,
    pub(super) task_lease_conflicts: Counter,
    pub(super) task_leases_expired: Counter,
    pub(super) task_version_conflicts: Counter,
    pub(super) doc_version_conflicts: Counter,
    took: Vec<(Histogram, Counter)>,
}

impl Counters {
    pub(super) fn new() -> Self {
        let took = Op::ALL.iter().map(|_| (Histogram::new(CALL), Counter::default())).collect();
        Self {
            leases: LeaseTracker::default(),
            acquisitions: Counter::default(),
            releases: Counter::default(),
            conflicts: Counter::default(),
            retries: Counter::default(),
            failures: Counter::default(),
            expired: Counter::default(),
            stolen: Counter::default(),
            forced: Counter::default(),
            swept: Counter::default(),
            acquire: Histogram::new(WAIT),
            hold: Histogram::new(HOLD),
            task_leases: Counter::default(),
            task_lease_conflicts: Counter::default(),
            task_leases_expired: Counter::default(),
            task_version_conflicts: Counter::default(),
            doc_version_conflicts: Counter::default(),
            took,
        }
    }

    pub(super) fn record_call<T>(&self, op: Op, began: BootInstant, answer: &Result<T>) {
        let (took, errors) = &self.took[op as usize];
        took.add(BootInstant::now().after(began));
        if answer.is_err() {
            errors.add(1);
        }
    }

    /// Records the response to an operation on a lock.
    pub(super) fn record_outcome(
        &self,
        name: &LockName,
        op: &LockOp,
        began: BootInstant,
        answer: &Result<Outcome>,
    ) {
        match (op, answer) {
            (LockOp::Acquire(_), Ok(Outcome::Granted(lease))) => {
                let first = self.leases.request_ended(lease.request.lease_id);
                // The granted request was itself a retry.
                self.retries.add(first.is_some_and(|(_, how)| how == AttemptKind::Once).into());
                if self.leases.lease_seen(name, lease, began) || first.is_some() {
                    self.acquired(first.map_or(began, |(since, _)| since));
                }
            }
            (LockOp::Acquire(acquire), Ok(Outcome::Conflict(_))) => {
                match self.leases.not_granted(acquire.request.lease_id, began, AttemptKind::Once) {
                    None => self.conflicts.add(1),
                    Some(AttemptKind::Once) => self.retries.add(1),
                    // A queued request gives up its ticket, which is not a retry.
                    Some(AttemptKind::Queued) => {}
                }
            }
            (LockOp::Acquire(acquire), Ok(Outcome::Queued(_))) => {
                let before = self.leases.not_granted(acquire.request.lease_id, began, AttemptKind::Queued);
                self.conflicts.add(before.is_none().into());
            }
            (LockOp::Acquire(acquire), Err(_)) => {
                self.failures.add(1);
                self.retries.add(
                    (self.leases.attempt_kind(acquire.request.lease_id) == Some(AttemptKind::Once)).into(),
                );
            }
            (_, Ok(Outcome::Renewed(lease))) => {
                self.record_hand_over(lease.request.lease_id);
                self.leases.lease_seen(name, lease, began);
            }
            (_, Ok(Outcome::Released(lease))) => {
                self.record_hand_over(lease.request.lease_id);
                self.releases.add(1);
                self.ended(name, lease);
            }
            (_, Ok(Outcome::Forced(lease))) => {
                self.forced.add(1);
                self.ended(name, lease);
            }
            (LockOp::Withdraw(withdraw), Ok(_)) => {
                self.leases.request_ended(withdraw.lease_id);
                self.leases.lease_ended(name, withdraw.lease_id);
            }
            _ => {}
        }
    }

    pub(super) fn record_sweep(&self, swept: Swept) {
        if swept.leases > 0 {
            self.swept.add(swept.leases.into());
            self.leases.swept();
        }
    }

    /// Returns the leases whose end must be looked up in the history.
    pub(super) fn take_possible_takeovers(&self) -> Vec<PossibleTakeover> {
        self.leases.take_possible_takeovers()
    }

    pub(super) fn record_takeover(&self, how: EventKind) {
        match how {
            EventKind::Stolen => self.stolen.add(1),
            _ => self.expired.add(1),
        }
    }

    pub(super) fn read(&self) -> MetricsSnapshot {
        let operation = |(op, (took, errors)): (&Op, &(Histogram, Counter))| Operation {
            op: op.name(),
            took: took.read(),
            errors: errors.get(),
        };
        MetricsSnapshot {
            acquisitions: self.acquisitions.get(),
            releases: self.releases.get(),
            conflicts: self.conflicts.get(),
            retries: self.retries.get(),
            failures: self.failures.get(),
            recovered: [
                ("expired", self.expired.get()),
                ("stolen", self.stolen.get()),
                ("forced", self.forced.get()),
                ("swept", self.swept.get()),
            ],
            acquire: self.acquire.read(),
            hold: self.hold.read(),
            task_leases: self.task_leases.get(),
            task_lease_conflicts: self.task_lease_conflicts.get(),
            task_leases_expired: self.task_leases_expired.get(),
            version_conflicts: [
                ("task", self.task_version_conflicts.get()),
                ("document", self.doc_version_conflicts.get()),
            ],
            rate_limit: None,
            operations: Op::ALL.iter().zip(&self.took).map(operation).collect(),
        }
    }

    fn acquired(&self, first: BootInstant) {
        self.acquisitions.add(1);
        self.acquire.add(BootInstant::now().after(first));
    }

    /// Records that a ticket has become this lease, if no earlier response showed it: the first
    /// renewal, or the release, then does.
    fn record_hand_over(&self, request: LeaseId) {
        if let Some((since, _)) = self.leases.request_ended(request) {
            self.acquired(since);
        }
    }

    fn ended(&self, name: &LockName, lease: &Lease) {
        self.hold.add(self.leases.since(lease.acquired_at));
        self.leases.lease_ended(name, lease.request.lease_id);
    }
}

/// Counts since the store was opened, in this process.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MetricsSnapshot {
    /// Number of acquired locks.
    pub acquisitions: u64,
    /// Number of released locks.
    pub releases: u64,
    /// Number of requests that found a lock held; each is counted once, however often it was retried.
    pub conflicts: u64,
    /// Number of retries of such requests.
    pub retries: u64,
    /// Number of acquire calls that ended in an error of the store.
    pub failures: u64,
    /// Number of leases that ended without their holder, by cause: taken over after they had
    /// `expired`, `stolen` as stale, `forced`, or `swept`. A takeover is counted in the process in
    /// which the lease had been granted.
    pub recovered: [(&'static str, u64); 4],
    /// Time from the first request for a lock to its grant.
    pub acquire: Buckets,
    /// Time for which locks were held.
    pub hold: Buckets,
    /// Number of task leases that were granted.
    pub task_leases: u64,
    /// Number of heartbeats and settlements for a task lease that had ended.
    pub task_lease_conflicts: u64,
    /// Number of task leases that expired.
    pub task_leases_expired: u64,
    /// Number of changes that were rejected because of an outdated version, by object: a `task` or a
    /// `document`.
    pub version_conflicts: [(&'static str, u64); 2],
    /// Remaining request quota of the engine, if it has one.
    pub rate_limit: Option<RateLimit>,
    /// Statistics of every kind of store call.
    pub operations: Vec<Operation>,
}

/// Statistics of one kind of store call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Operation {
    /// Name of the operation.
    pub op: &'static str,
    /// Duration of the calls.
    pub took: Buckets,
    /// Number of calls that ended in an error.
    pub errors: u64,
}

impl MetricsSnapshot {
    /// Returns the total number of leases that ended without their holder.
    pub fn recovered_in_all(&self) -> u64 {
        self.recovered.iter().map(|(_, count)| count).sum()
    }
}

macro_rules! operations {
    ($($variant:ident $name:literal)+) => {
        /// Kind of a store call. Its name becomes a label.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Op {
            $($variant,)+
        }

        impl Op {
            pub(super) const ALL: &[Self] = &[$(Self::$variant,)+];

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

operations! {
    Acquire "lock_acquire"
    Renew "lock_renew"
    Release "lock_release"
    Withdraw "lock_leave"
    RequestRelease "lock_ask_release"
    ForceRelease "lock_force_release"
    SweepOne "lock_sweep_one"
    LockGet "lock_get"
    LockPeek "lock_peek"
    LockList "lock_list"
    LockHistory "lock_history"
    LockNow "lock_now"
    LockSweep "lock_sweep"
    LockForget "lock_forget"
    TaskEnqueue "task_enqueue"
    TaskLease "task_lease"
    TaskHeartbeat "task_heartbeat"
    TaskLeave "task_leave"
    TaskSettle "task_settle"
    TaskChange "task_change"
    TaskRecover "task_recover"
    TaskGet "task_get"
    TaskList "task_list"
    TaskQueues "task_queues"
    TaskPause "task_pause"
    TaskWorkers "task_workers"
    TaskArchive "task_archive"
    TaskPurge "task_purge"
    TaskNow "task_now"
    DocGet "doc_get"
    DocPut "doc_put"
    DocList "doc_list"
    DocTime "doc_time"
}

impl From<&LockOp> for Op {
    fn from(op: &LockOp) -> Self {
        match op {
            LockOp::Acquire(_) => Self::Acquire,
            LockOp::Renew(_) | LockOp::RenewLogged(_) => Self::Renew,
            LockOp::Release(_) => Self::Release,
            LockOp::Withdraw(_) => Self::Withdraw,
            LockOp::RequestRelease(_) => Self::RequestRelease,
            LockOp::ForceRelease(_) => Self::ForceRelease,
            LockOp::Sweep(_) | LockOp::Restarted(_) => Self::SweepOne,
        }
    }
}
