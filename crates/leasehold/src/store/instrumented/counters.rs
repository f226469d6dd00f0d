//! Counters of an instrumented store, and what each outcome adds to them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::{CALL, HOLD, Histogram, WAIT};
use super::lease_tracker::{AttemptKind, LeaseTracker, PossibleTakeover};
use super::op::Op;
use super::snapshot::{MetricsSnapshot, Operation};
use crate::Result;
use crate::model::{EventKind, Lease, LeaseId, LockName, LockOp, Outcome, Swept};
use crate::store::BootInstant;

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

/// Counters and histograms of one store.
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
            leases: LeaseTracker::new(),
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

    /// Records the end of a call.
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
                    // A queued request now asks without the queue: it gives up its ticket, which is
                    // not a retry.
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

    /// Records a sweep.
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

    /// Records the takeover of a lease.
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
            budget: None,
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
