//! The worlds that are explored: each small enough to be seen whole, each aimed at one theme.

use leasehold_model::Reuse;

use super::config::{Config, How, Plan};
use super::facts::Fact;

/// A task that goes from hand to hand and back, with writes in flight.
pub(super) fn in_turn() -> Config {
    Config {
        name: "in turn",
        workers: &[2, 1],
        writes: 2,
        sweeps: 2,
        ticks: 3,
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

/// Tasks with one lock in two queues, each with a worker of its own: neither queue waits for the other.
pub(super) fn queues() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    let other = Plan { queue: 1, ..task.clone() };
    Config {
        name: "queues",
        tasks: vec![task.clone(), other.clone(), Plan { adds: 1, ..other }],
        workers: &[1, 2],
        apart: true,
        ticks: 1,
        verdicts: &[How::Done, How::Return],
        must_see: &[Fact::Succeeded, Fact::GivenBack, Fact::Unblocked],
        ..Config::default()
    }
}

/// Tasks with one lock, the later ones of higher priority.
pub(super) fn better() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    Config {
        name: "better",
        tasks: vec![
            task.clone(),
            Plan { adds: 1, priority: 1, ..task.clone() },
            Plan { adds: 1, priority: 1, after: 1, ..task },
        ],
        workers: &[2],
        verdicts: &[How::Done, How::Snooze, How::Return],
        must_see: &[
            Fact::Succeeded,
            Fact::GivenBack,
            Fact::Unblocked,
            Fact::HeadReplaced,
            Fact::PromotedIntoATakenLock,
        ],
        ..Config::default()
    }
}

/// Tasks that those who added them are to run, in front of one that anybody may run.
pub(super) fn runners() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    let wanted = Plan { wanted: 1, ..task.clone() };
    Config {
        name: "runners",
        tasks: vec![wanted.clone(), Plan { adds: 1, ..wanted }, task],
        workers: &[2],
        verdicts: &[How::Done, How::Return],
        sweeps: 2,
        wants: 2,
        must_see: &[
            Fact::Succeeded,
            Fact::GivenBack,
            Fact::Abandoned,
            Fact::RunnerRenewed,
            Fact::Unblocked,
            Fact::LiveLeaseSpared,
        ],
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

/// Workers that fetch a task ahead, start it or not, tell of it or not, and are gone.
pub(super) fn ahead() -> Config {
    Config {
        name: "ahead",
        workers: &[2, 1],
        ticks: 3,
        beats: 1,
        sweeps: 1,
        ahead: true,
        verdicts: &[How::Done, How::Again],
        must_see: &[
            Fact::FetchedAhead,
            Fact::EndedUnstarted,
            Fact::StartedUntold,
            Fact::ToldOfAStart,
            Fact::EndedByALease,
            Fact::GivenBack,
            Fact::Succeeded,
        ],
        ..Config::default()
    }
}

/// A task whose worker is gone again and again.
pub(super) fn lost() -> Config {
    Config {
        name: "lost",
        tasks: vec![Plan { attempts: 3, ..Plan::default() }],
        workers: &[3],
        ticks: 7,
        sweeps: 2,
        must_see: &[Fact::Alone, Fact::EndedByALease, Fact::Recovered, Fact::Promoted, Fact::Succeeded],
        ..Config::default()
    }
}

/// Tasks that are leased together, and whose workers are gone again and again.
pub(super) fn poison() -> Config {
    Config {
        name: "poison",
        tasks: vec![Plan { attempts: 3, ..Plan::default() }, Plan::default()],
        workers: &[3],
        ticks: 7,
        sweeps: 2,
        max: 2,
        must_see: &[
            Fact::Alone,
            Fact::EndedByALease,
            Fact::Recovered,
            Fact::GivenUpByRecovery,
            Fact::Succeeded,
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
