//! What has happened somewhere in a world: a promise that nothing ever put to the test says nothing.
//!
//! Facts are about steps. They are noted aside, not in the state, so that they add no states.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_model::{AttemptResult, Enqueued, HeartbeatResult, Settled, TaskAnswer, TaskOp, TaskState};

use super::audit::Step;
use super::rules::{Answer, Op};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
    Succeeded,
    Failed,
    Aborted,
    TriedAgain,
    PutOff,
    GivenBack,
    AttemptsUsedUp,
    Kept,
    KeptAfterItsEnd,
    KeptAndAskedToStop,
    BeatRefused,
    SettledAfterItsEnd,
    SettledAgain,
    StaleSettlementRefused,
    Recovered,
    GivenUpByRecovery,
    StoppedByRecovery,
    RecoveryFoundNothing,
    LiveLeaseSpared,
    OutdatedSweep,
    TwoSweepersAtOnce,
    Promoted,
    PromotedIntoATakenLock,
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
    AddedAgain,
    KeyUsedAnew,
    NoRoom,
    NoRoomInLine,
    NoRoomForAFreeKey,
    LeasedToNobody,
    ReplyTooLate,
    StrayTaken,
    StrayWasKnown,
    SameWorkerAgain,
    CrashedWithALease,
    StaleWriteRefused,
    NewerWriteAccepted,
    FetchedAhead,
    EndedUnstarted,
    StartedUntold,
    ToldOfAStart,
    EndedByALease,
    Alone,
}

/// The facts noted so far.
#[derive(Debug, Default)]
pub(super) struct Facts(AtomicU64);

impl Facts {
    pub(super) fn note(&self, fact: Fact) {
        self.0.fetch_or(1 << fact as u64, Ordering::Relaxed);
    }

    pub(super) fn has(&self, fact: Fact) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << fact as u64 != 0
    }

    fn note_if(&self, fact: Fact, happened: bool) {
        if happened {
            self.note(fact);
        }
    }

    /// Notes whether what was leased is to be started later, or alone.
    pub(super) fn note_ahead(&self, leased: &[leasehold_model::Task]) {
        self.note_if(Fact::FetchedAhead, leased.iter().any(|task| !task.begun));
        self.note_if(Fact::Alone, leased.iter().any(leasehold_model::Task::runs_alone));
    }

    /// Notes what one step of the rules shows.
    pub(super) fn note_step(&self, step: &Step) {
        for pair in step.pairs() {
            match (pair.before.state, pair.after.state) {
                (TaskState::Running, TaskState::Succeeded) => self.note(Fact::Succeeded),
                (TaskState::Running, TaskState::Failed) => self.note(Fact::Failed),
                (TaskState::Running, TaskState::Aborted) => self.note(Fact::Aborted),
                (TaskState::Scheduled, TaskState::Pending) => self.note(Fact::Promoted),
                (TaskState::Scheduled, TaskState::Blocked) => self.note(Fact::PromotedIntoATakenLock),
                (TaskState::Blocked, TaskState::Pending) => self.note(Fact::Unblocked),
                (TaskState::Pending, TaskState::Blocked) => self.note(Fact::HeadReplaced),
                _ => {}
            }
        }
        if matches!(step.op, Op::Lease(_) | Op::Recover) {
            for pair in step.pairs().filter(|pair| pair.known.lapsed(step.now())) {
                self.note_if(Fact::EndedUnstarted, !pair.known.begun && !pair.known.started);
                self.note_if(Fact::StartedUntold, !pair.known.begun && pair.known.started);
                self.note_if(Fact::EndedByALease, matches!(step.op, Op::Lease(_)));
            }
        }
        match step.op {
            Op::Beat(..) => self.note_beat(step),
            Op::Settle(settle) => self.note_settlement(step, &settle.verdict),
            Op::Change(_, op) => self.note_by_hand(step, op),
            Op::Recover => self.note_recovery(step),
            Op::Enqueue(_) => self.note_enqueue(step),
            Op::Lease(_) => {}
        }
    }

    fn note_beat(&self, step: &Step) {
        let lapsed = step.named_pair().is_some_and(|pair| pair.known.lapsed(step.now()));
        match step.answer {
            Answer::Beat(HeartbeatResult::Lost) => self.note(Fact::BeatRefused),
            Answer::Beat(HeartbeatResult::Extended(asked)) => {
                self.note(Fact::Kept);
                let begins = step.named_pair().is_some_and(|pair| pair.after.begun && !pair.before.begun);
                self.note_if(Fact::ToldOfAStart, begins);
                self.note_if(Fact::KeptAfterItsEnd, lapsed);
                self.note_if(Fact::KeptAndAskedToStop, asked.is_some());
            }
            _ => {}
        }
    }

    fn note_settlement(&self, step: &Step, verdict: &AttemptResult) {
        let Some(pair) = step.named_pair() else { return };
        match (step.answer, pair.before.state) {
            (Answer::Settled(Settled::Lost), _) => self.note(Fact::StaleSettlementRefused),
            (_, TaskState::Running) => {
                self.note_if(Fact::SettledAfterItsEnd, pair.known.lapsed(step.now()));
                let used = pair.after.attempt == pair.before.attempt;
                match pair.after.state {
                    TaskState::Scheduled => self.note(if used { Fact::TriedAgain } else { Fact::PutOff }),
                    TaskState::Pending => self.note(Fact::GivenBack),
                    TaskState::Failed => {
                        self.note_if(Fact::AttemptsUsedUp, matches!(verdict, AttemptResult::Retry(..)));
                    }
                    _ => {}
                }
            }
            _ => self.note(Fact::SettledAgain),
        }
    }

    fn note_recovery(&self, step: &Step) {
        let Answer::Recovered(recovered) = step.answer else { return };
        self.note_if(Fact::Recovered, recovered.returned > 0);
        self.note_if(Fact::GivenUpByRecovery, recovered.failed > 0);
        self.note_if(Fact::StoppedByRecovery, recovered.aborted > 0);
        self.note_if(Fact::Abandoned, step.pairs().any(|pair| pair.is_abandoned(step.now())));
        self.note_if(Fact::RecoveryFoundNothing, recovered.expired() == 0);
        let mut pairs = step.pairs();
        let live = pairs.any(|pair| pair.known.lease.is_some() && !pair.known.lapsed(step.now()));
        self.note_if(Fact::LiveLeaseSpared, live);
    }

    fn note_by_hand(&self, step: &Step, op: &TaskOp) {
        let (Answer::Changed(Some(answer)), Some(pair)) = (step.answer, step.named_pair()) else { return };
        let running = pair.before.state == TaskState::Running;
        let terminal = pair.before.state.is_terminal();
        self.note(match (op, answer) {
            (TaskOp::Expire, TaskAnswer::Done) => Fact::Recovered,
            (TaskOp::Expire, _) => Fact::OutdatedSweep,
            (TaskOp::Want(_), TaskAnswer::Done) => Fact::RunnerRenewed,
            (TaskOp::Cancel(_), TaskAnswer::Done) if running => Fact::CancelledWhileRunning,
            (TaskOp::Cancel(_), TaskAnswer::Done) => Fact::CancelledAtRest,
            (TaskOp::Cancel(_), _) => Fact::CancelRefused,
            (TaskOp::Retry(_), TaskAnswer::Done) if terminal => Fact::RetriedByHand,
            (TaskOp::Retry(_), TaskAnswer::Done) => Fact::RunNowByHand,
            (TaskOp::Retry(_), _) => Fact::RetryRefused,
            (TaskOp::Update(_), TaskAnswer::Done) => Fact::Updated,
            (TaskOp::Update(_), TaskAnswer::VersionConflict(_)) => Fact::VersionConflict,
            _ => Fact::UpdateRefused,
        });
    }

    fn note_enqueue(&self, step: &Step) {
        let Op::Enqueue(new) = step.op else { return };
        match step.answer {
            Answer::Enqueued(Enqueued::Duplicate(_)) => self.note(Fact::Duplicate),
            Answer::Enqueued(Enqueued::NoRoom(_)) => {
                self.note(Fact::NoRoom);
                self.note_if(Fact::NoRoomInLine, new.room > Some(0));
                self.note_if(Fact::NoRoomForAFreeKey, new.key.is_some());
            }
            _ if step.before.get(new.id).is_some() => self.note(Fact::AddedAgain),
            _ => self.note_if(Fact::KeyUsedAnew, new.key.is_some() && step.state.memory.key.is_some()),
        }
    }
}
