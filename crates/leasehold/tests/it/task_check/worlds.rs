//! The worlds that are explored: each small enough to be seen whole, each aimed at one theme.

use leasehold::model::Reuse;

use super::config::{Config, How, Plan};
use super::facts::Fact;

/// A task that goes from hand to hand and back, with writes in flight.
pub(super) fn in_turn() -> Config {
    Config {
        name: "in turn",
        workers: &[2, 1],
        writes: 2,
        sweeps: 2,
        must_see: &[
            Fact::Succeeded,
            Fact::SettledAfterItsEnd,
            Fact::StaleSettlementRefused,
            Fact::Recovered,
            Fact::GivenUpByRecovery,
            Fact::RecoveryFoundNothing,
            Fact::LiveLeaseSpared,
            Fact::ReplyTooLate,
            Fact::StaleWriteRefused,
            Fact::NewerWriteAccepted,
        ],
        ..Config::default()
    }
}

/// Signs of life that are late or lost, and a worker that crashes.
pub(super) fn signs() -> Config {
    Config {
        name: "signs",
        beats: 2,
        crashes: 1,
        must_see: &[
            Fact::Kept,
            Fact::KeptAfterItsEnd,
            Fact::BeatRefused,
            Fact::Recovered,
            Fact::LiveLeaseSpared,
            Fact::CrashedWithALease,
        ],
        ..Config::default()
    }
}

/// Every way in which an attempt may end, said once or twice.
pub(super) fn verdicts() -> Config {
    Config {
        name: "verdicts",
        verdicts: &[How::Done, How::Again, How::Fail, How::Snooze, How::Return],
        duplicates: 1,
        must_see: &[
            Fact::Succeeded,
            Fact::Failed,
            Fact::TriedAgain,
            Fact::PutOff,
            Fact::GivenBack,
            Fact::AttemptsUsedUp,
            Fact::SettledAfterItsEnd,
            Fact::SettledAgain,
            Fact::StaleSettlementRefused,
            Fact::Promoted,
            Fact::LeasedToNobody,
        ],
        ..Config::default()
    }
}

/// Somebody cancels, somebody retries, at any time.
pub(super) fn by_hand() -> Config {
    Config {
        name: "by hand",
        beats: 1,
        verdicts: &[How::Done, How::Again, How::Fail],
        cancels: 1,
        retries: 1,
        ticks: 1,
        must_see: &[
            Fact::Aborted,
            Fact::CancelledAtRest,
            Fact::CancelledWhileRunning,
            Fact::CancelRefused,
            Fact::KeptAndAskedToStop,
            Fact::StoppedByRecovery,
            Fact::RetriedByHand,
            Fact::RunNowByHand,
            Fact::RetryRefused,
            Fact::StaleSettlementRefused,
        ],
        ..Config::default()
    }
}

/// Somebody changes a task that looked different a moment ago.
pub(super) fn updates() -> Config {
    Config {
        name: "updates",
        verdicts: &[How::Done, How::Again],
        updates: 2,
        must_see: &[Fact::Updated, Fact::UpdateRefused, Fact::VersionConflict, Fact::Promoted],
        ..Config::default()
    }
}

/// Two sweepers with old news, and a recovery besides.
pub(super) fn sweepers() -> Config {
    Config {
        name: "sweepers",
        beats: 1,
        looks: 2,
        must_see: &[
            Fact::Kept,
            Fact::KeptAfterItsEnd,
            Fact::BeatRefused,
            Fact::Recovered,
            Fact::OutdatedSweep,
            Fact::TwoSweepersAtOnce,
            Fact::LiveLeaseSpared,
            Fact::StaleSettlementRefused,
        ],
        ..Config::default()
    }
}

/// Two tasks with one lock, one of which has to wait for its time.
pub(super) fn locked() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    Config {
        name: "locked",
        tasks: vec![task.clone(), Plan { after: 1, ..task }],
        verdicts: &[How::Done, How::Snooze, How::Return],
        cancels: 1,
        must_see: &[
            Fact::Succeeded,
            Fact::PutOff,
            Fact::GivenBack,
            Fact::GivenUpByRecovery,
            Fact::CancelledAtRest,
            Fact::CancelledWhileRunning,
            Fact::Promoted,
            Fact::PromotedIntoATakenLock,
            Fact::Unblocked,
        ],
        ..Config::default()
    }
}

/// Three tasks with one lock that are there at once, and somebody who puts one off or begins it anew.
pub(super) fn queue() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    Config {
        name: "queue",
        tasks: vec![task; 3],
        workers: &[2],
        ticks: 1,
        retries: 1,
        updates: 1,
        verdicts: &[How::Done, How::Fail],
        must_see: &[Fact::Succeeded, Fact::Failed, Fact::Unblocked, Fact::Updated, Fact::RetriedByHand],
        ..Config::default()
    }
}

/// A task that is added by two at once under one key, each of them twice.
pub(super) fn keys() -> Config {
    let task = Plan { key: true, attempts: 1, adds: 2, ..Plan::default() };
    Config {
        name: "keys",
        tasks: vec![task.clone(), task],
        workers: &[1],
        verdicts: &[How::Done, How::Fail],
        must_see: &[Fact::Succeeded, Fact::Duplicate, Fact::AddedAgain],
        ..Config::default()
    }
}

/// A key that may be used anew once its task is over, or once it has failed.
pub(super) fn anew() -> Config {
    let task = Plan { key: true, attempts: 1, adds: 2, ..Plan::default() };
    Config {
        name: "anew",
        tasks: vec![
            Plan { reuse: Reuse::Finished, ..task.clone() },
            Plan { reuse: Reuse::Failed, adds: 1, ..task },
        ],
        workers: &[2],
        ticks: 1,
        verdicts: &[How::Done, How::Fail],
        retries: 1,
        must_see: &[Fact::Duplicate, Fact::AddedAgain, Fact::KeyUsedAnew, Fact::RetriedByHand],
        ..Config::default()
    }
}

/// Tasks that are added only if there is room behind the lock; some of them have a key.
pub(super) fn room() -> Config {
    let task = Plan { lock: true, room: Some(0), attempts: 1, adds: 1, ..Plan::default() };
    let keyed = Plan { key: true, reuse: Reuse::Failed, ..task.clone() };
    let patient = Plan { room: Some(1), ..task };
    Config {
        name: "room",
        tasks: vec![keyed.clone(), keyed, patient.clone(), patient],
        workers: &[2],
        ticks: 1,
        sweeps: 0,
        verdicts: &[How::Done, How::Fail],
        must_see: &[
            Fact::NoRoom,
            Fact::NoRoomInLine,
            Fact::NoRoomForAFreeKey,
            Fact::Duplicate,
            Fact::KeyUsedAnew,
            Fact::Unblocked,
        ],
        ..Config::default()
    }
}

/// Workers that miss answers, and then ask the store what they were given.
pub(super) fn strays() -> Config {
    Config {
        name: "strays",
        workers: &[2],
        sweeps: 2,
        strays: true,
        must_see: &[
            Fact::StrayTaken,
            Fact::StrayWasKnown,
            Fact::SameWorkerAgain,
            Fact::ReplyTooLate,
            Fact::LeasedToNobody,
            Fact::StaleSettlementRefused,
        ],
        ..Config::default()
    }
}

/// Two tasks and two workers with everything at once, as far as it can be seen.
pub(super) fn crowd() -> Config {
    Config {
        name: "crowd",
        tasks: vec![Plan { lock: true, ..Plan::default() }, Plan { lock: true, adds: 1, ..Plan::default() }],
        workers: &[2, 2, 2],
        beats: 2,
        verdicts: &[How::Done, How::Again, How::Snooze],
        crashes: 1,
        cancels: 1,
        retries: 1,
        sweeps: 2,
        looks: 1,
        duplicates: 1,
        depth: Some(7),
        must_see: &[Fact::Succeeded, Fact::Kept, Fact::Recovered, Fact::Unblocked, Fact::CrashedWithALease],
        ..Config::default()
    }
}
