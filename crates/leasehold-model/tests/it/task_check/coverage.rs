//! Situations that occurred somewhere in a configuration: a property that was never put to the test
//! proves nothing.
//!
//! Situations are about steps. They are recorded outside the state, so that they add no states.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_model::{AttemptResult, Enqueued, HeartbeatResult, Settled, TaskAnswer, TaskOp, TaskState};

use super::audit::Step;
use super::rules::{Op, Response};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Situation {
    Succeeded,
    Failed,
    Aborted,
    RetryScheduled,
    Snoozed,
    Returned,
    AttemptsUsedUp,
    Extended,
    ExtendedAfterItsEnd,
    ExtendedWithCancel,
    HeartbeatRefused,
    SettledAfterItsEnd,
    SettledAgain,
    StaleSettlementRefused,
    Recovered,
    FailedByRecovery,
    AbortedByRecovery,
    RecoveryFoundNothing,
    LiveLeaseSpared,
    OutdatedSweep,
    TwoSweepersAtOnce,
    Promoted,
    PromotedIntoAHeldLock,
    Unblocked,
    HeadReplaced,
    Abandoned,
    RunnerRenewed,
    CancelledAtRest,
    CancelledWhileRunning,
    CancelRefused,
    RetriedByHand,
    RunNowByHand,
    RetryRefused,
    Updated,
    UpdateRefused,
    VersionConflict,
    Duplicate,
    EnqueuedAgain,
    KeyReused,
    LockQueueFull,
    NoRoomForBlocked,
    NoRoomForAFreeKey,
    LeasedToInactiveWorker,
    ReplyTooLate,
    UnconfirmedTaken,
    UnconfirmedWasKnown,
    SameWorkerAgain,
    CrashedWithALease,
    StaleWriteRefused,
    NewerWriteAccepted,
    Prefetched,
    EndedUnstarted,
    StartUnreported,
    StartReported,
    EndedByALease,
    Alone,
}

/// Situations that occurred so far.
#[derive(Debug, Default)]
pub(super) struct Coverage(AtomicU64);

impl Coverage {
    pub(super) fn record(&self, situation: Situation) {
        self.0.fetch_or(1 << situation as u64, Ordering::Relaxed);
    }

    pub(super) fn has(&self, situation: Situation) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << situation as u64 != 0
    }

    fn record_if(&self, situation: Situation, happened: bool) {
        if happened {
            self.record(situation);
        }
    }

    /// Records whether a leased task is prefetched, or runs alone.
    pub(super) fn record_leased(&self, leased: &[leasehold_model::Task]) {
        self.record_if(Situation::Prefetched, leased.iter().any(|task| !task.begun));
        self.record_if(Situation::Alone, leased.iter().any(leasehold_model::Task::runs_alone));
    }

    /// Records the situations of one step.
    pub(super) fn record_step(&self, step: &Step) {
        for pair in step.pairs() {
            match (pair.before.state, pair.after.state) {
                (TaskState::Running, TaskState::Succeeded) => self.record(Situation::Succeeded),
                (TaskState::Running, TaskState::Failed) => self.record(Situation::Failed),
                (TaskState::Running, TaskState::Aborted) => self.record(Situation::Aborted),
                (TaskState::Scheduled, TaskState::Pending) => self.record(Situation::Promoted),
                (TaskState::Scheduled, TaskState::Blocked) => self.record(Situation::PromotedIntoAHeldLock),
                (TaskState::Blocked, TaskState::Pending) => self.record(Situation::Unblocked),
                (TaskState::Pending, TaskState::Blocked) => self.record(Situation::HeadReplaced),
                _ => {}
            }
        }
        if matches!(step.op, Op::Lease(_) | Op::Recover) {
            for pair in step.pairs().filter(|pair| pair.known.has_expired(step.now())) {
                self.record_if(Situation::EndedUnstarted, !pair.known.begun && !pair.known.started);
                self.record_if(Situation::StartUnreported, !pair.known.begun && pair.known.started);
                self.record_if(Situation::EndedByALease, matches!(step.op, Op::Lease(_)));
            }
        }
        match step.op {
            Op::Heartbeat(..) => self.record_heartbeat(step),
            Op::Settle(settle) => self.record_settlement(step, &settle.result),
            Op::Change(_, op) => self.record_by_hand(step, op),
            Op::Recover => self.record_recovery(step),
            Op::Enqueue(_) => self.record_enqueue(step),
            Op::Lease(_) => {}
        }
    }

    fn record_heartbeat(&self, step: &Step) {
        let has_expired = step.named_pair().is_some_and(|pair| pair.known.has_expired(step.now()));
        match step.response {
            Response::Heartbeat(HeartbeatResult::Lost) => self.record(Situation::HeartbeatRefused),
            Response::Heartbeat(HeartbeatResult::Extended(cancel)) => {
                self.record(Situation::Extended);
                let begins = step.named_pair().is_some_and(|pair| pair.after.begun && !pair.before.begun);
                self.record_if(Situation::StartReported, begins);
                self.record_if(Situation::ExtendedAfterItsEnd, has_expired);
                self.record_if(Situation::ExtendedWithCancel, cancel.is_some());
            }
            _ => {}
        }
    }

    fn record_settlement(&self, step: &Step, result: &AttemptResult) {
        let Some(pair) = step.named_pair() else { return };
        match (step.response, pair.before.state) {
            (Response::Settled(Settled::Lost), _) => self.record(Situation::StaleSettlementRefused),
            (_, TaskState::Running) => {
                self.record_if(Situation::SettledAfterItsEnd, pair.known.has_expired(step.now()));
                let used = pair.after.attempt == pair.before.attempt;
                match pair.after.state {
                    TaskState::Scheduled => {
                        self.record(if used { Situation::RetryScheduled } else { Situation::Snoozed });
                    }
                    TaskState::Pending => self.record(Situation::Returned),
                    TaskState::Failed => {
                        self.record_if(Situation::AttemptsUsedUp, matches!(result, AttemptResult::Retry(..)));
                    }
                    _ => {}
                }
            }
            _ => self.record(Situation::SettledAgain),
        }
    }

    fn record_recovery(&self, step: &Step) {
        let Response::Recovered(recovered) = step.response else { return };
        self.record_if(Situation::Recovered, recovered.returned > 0);
        self.record_if(Situation::FailedByRecovery, recovered.failed > 0);
        self.record_if(Situation::AbortedByRecovery, recovered.aborted > 0);
        self.record_if(Situation::Abandoned, step.pairs().any(|pair| pair.is_abandoned(step.now())));
        self.record_if(Situation::RecoveryFoundNothing, recovered.expired() == 0);
        let mut pairs = step.pairs();
        let live = pairs.any(|pair| pair.known.lease.is_some() && !pair.known.has_expired(step.now()));
        self.record_if(Situation::LiveLeaseSpared, live);
    }

    fn record_by_hand(&self, step: &Step, op: &TaskOp) {
        let (Response::Changed(Some(response)), Some(pair)) = (step.response, step.named_pair()) else {
            return;
        };
        let running = pair.before.state == TaskState::Running;
        let terminal = pair.before.state.is_terminal();
        self.record(match (op, response) {
            (TaskOp::Expire, TaskAnswer::Done) => Situation::Recovered,
            (TaskOp::Expire, _) => Situation::OutdatedSweep,
            (TaskOp::RenewRunner(_), TaskAnswer::Done) => Situation::RunnerRenewed,
            (TaskOp::Cancel(_), TaskAnswer::Done) if running => Situation::CancelledWhileRunning,
            (TaskOp::Cancel(_), TaskAnswer::Done) => Situation::CancelledAtRest,
            (TaskOp::Cancel(_), _) => Situation::CancelRefused,
            (TaskOp::Retry(_), TaskAnswer::Done) if terminal => Situation::RetriedByHand,
            (TaskOp::Retry(_), TaskAnswer::Done) => Situation::RunNowByHand,
            (TaskOp::Retry(_), _) => Situation::RetryRefused,
            (TaskOp::Update(_), TaskAnswer::Done) => Situation::Updated,
            (TaskOp::Update(_), TaskAnswer::VersionConflict(_)) => Situation::VersionConflict,
            _ => Situation::UpdateRefused,
        });
    }

    fn record_enqueue(&self, step: &Step) {
        let Op::Enqueue(new) = step.op else { return };
        match step.response {
            Response::Enqueued(Enqueued::Duplicate(_)) => self.record(Situation::Duplicate),
            Response::Enqueued(Enqueued::LockQueueFull(_)) => {
                self.record(Situation::LockQueueFull);
                self.record_if(Situation::NoRoomForBlocked, new.lock_queue_limit > Some(0));
                self.record_if(Situation::NoRoomForAFreeKey, new.key.is_some());
            }
            _ if step.before.get(new.id).is_some() => self.record(Situation::EnqueuedAgain),
            _ => self.record_if(Situation::KeyReused, new.key.is_some() && step.state.memory.key.is_some()),
        }
    }
}
