//! Counters of an instrumented store, and what each outcome adds to them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::{CALL, HOLD, Histogram, WAIT};
use super::op::Op;
use super::reading::{MetricsSnapshot, Operation};
use super::watch::{Asking, Doubt, Watch};
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
pub(super) struct Meter {
    watch: Watch,
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

impl Meter {
    pub(super) fn new() -> Self {
        let took = Op::ALL.iter().map(|_| (Histogram::new(CALL), Counter::default())).collect();
        Self {
            watch: Watch::new(),
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
    pub(super) fn call<T>(&self, op: Op, began: BootInstant, answer: &Result<T>) {
        let (took, errors) = &self.took[op as usize];
        took.add(BootInstant::now().after(began));
        if answer.is_err() {
            errors.add(1);
        }
    }

    /// Records the response to an operation on a lock.
    pub(super) fn answered(
        &self,
        name: &LockName,
        op: &LockOp,
        began: BootInstant,
        answer: &Result<Outcome>,
    ) {
        match (op, answer) {
            (LockOp::Acquire(_), Ok(Outcome::Granted(lease))) => {
                let asked = self.watch.served(lease.ask.lease_id);
                // The granted request was itself a retry.
                self.retries.add(asked.is_some_and(|(_, how)| how == Asking::Once).into());
                if self.watch.holds(name, lease, began) || asked.is_some() {
                    self.acquired(asked.map_or(began, |(since, _)| since));
                }
            }
            (LockOp::Acquire(acquire), Ok(Outcome::Conflict(_))) => {
                match self.watch.asks(acquire.ask.lease_id, began, Asking::Once) {
                    None => self.conflicts.add(1),
                    Some(Asking::Once) => self.retries.add(1),
                    // A queued request now asks without the queue: it gives up its ticket, which is
                    // not a retry.
                    Some(Asking::InQueue) => {}
                }
            }
            (LockOp::Acquire(acquire), Ok(Outcome::Queued(_))) => {
                let before = self.watch.asks(acquire.ask.lease_id, began, Asking::InQueue);
                self.conflicts.add(before.is_none().into());
            }
            (LockOp::Acquire(acquire), Err(_)) => {
                self.failures.add(1);
                self.retries.add((self.watch.asking(acquire.ask.lease_id) == Some(Asking::Once)).into());
            }
            (_, Ok(Outcome::Renewed(lease))) => {
                self.handed_over(lease.ask.lease_id);
                self.watch.holds(name, lease, began);
            }
            (_, Ok(Outcome::Released(lease))) => {
                self.handed_over(lease.ask.lease_id);
                self.releases.add(1);
                self.ended(name, lease);
            }
            (_, Ok(Outcome::Forced(lease))) => {
                self.forced.add(1);
                self.ended(name, lease);
            }
            (LockOp::Leave(leave), Ok(_)) => {
                self.watch.served(leave.lease_id);
                self.watch.ended(name, leave.lease_id);
            }
            _ => {}
        }
    }

    /// Records a sweep.
    pub(super) fn cleared(&self, swept: Swept) {
        if swept.leases > 0 {
            self.swept.add(swept.leases.into());
            self.watch.swept();
        }
    }

    /// Returns the leases whose end must be looked up in the history.
    pub(super) fn take_doubts(&self) -> Vec<Doubt> {
        self.watch.take_doubts()
    }

    /// Records the takeover of a lease.
    pub(super) fn taken_over(&self, how: EventKind) {
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

    fn acquired(&self, asked: BootInstant) {
        self.acquisitions.add(1);
        self.acquire.add(BootInstant::now().after(asked));
    }

    /// Records that a ticket has become this lease, if no earlier response showed it: the first
    /// renewal, or the release, then does.
    fn handed_over(&self, request: LeaseId) {
        if let Some((since, _)) = self.watch.served(request) {
            self.acquired(since);
        }
    }

    fn ended(&self, name: &LockName, lease: &Lease) {
        self.hold.add(self.watch.since(lease.acquired_at));
        self.watch.ended(name, lease.ask.lease_id);
    }
}
