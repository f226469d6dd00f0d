//! Configurations that are explored, and the tests that the rules have every property in them. Each
//! configuration is small enough to be visited completely, and covers one subject.

use leasehold_model::Reuse;

use super::config::{AttemptEnd, Config, Plan};
use super::coverage::Situation;
use super::rules::CORRECT;
use super::system::System;
use crate::shared::{explore, passes};

passes! {
    a_task_changes_workers_and_old_writes_are_refused: alternating,
    a_heartbeat_extends_a_lease_and_a_crash_ends_it: heartbeats,
    every_settlement_counts_once: results,
    people_may_change_tasks_at_any_time: by_hand,
    an_update_with_an_old_version_changes_nothing: updates,
    two_recoveries_with_stale_reads_end_no_live_lease: sweepers,
    of_two_tasks_with_one_lock_one_runs_and_none_is_stuck: locked,
    a_queue_for_one_lock_is_never_stuck: queue,
    a_lock_has_a_head_in_each_queue: queues,
    a_higher_priority_goes_first_unless_the_head_runs: priorities,
    a_task_with_a_dead_runner_blocks_no_other: runners,
    one_key_is_one_task: keys,
    a_key_is_reused_only_when_allowed: reused_keys,
    a_task_is_added_only_within_the_queue_limit_and_a_refused_one_takes_no_key: room,
    a_worker_that_missed_a_response_recovers_its_task_and_makes_one_attempt: missed_responses,
    a_prefetched_task_counts_once_started: ahead,
    a_task_that_waits_for_its_lock_counts_once_its_start_is_reported: waiting,
    a_task_that_lost_its_worker_twice_waits_for_the_default_delay: lost_leases,
    a_task_that_lost_its_workers_is_delayed_and_runs_alone: repeated_crashes,
    three_workers_have_every_property_within_a_bound: three_workers,
}

/// A task that changes workers and returns to the first, with writes in flight.
pub(super) fn alternating() -> Config {
    Config {
        name: "alternating",
        workers: &[2, 1],
        writes: 2,
        sweeps: 2,
        ticks: 3,
        must_cover: &[
            Situation::Succeeded,
            Situation::SettledAfterItsEnd,
            Situation::StaleSettlementRefused,
            Situation::Recovered,
            Situation::FailedByRecovery,
            Situation::RecoveryFoundNothing,
            Situation::LiveLeaseSpared,
            Situation::ReplyTooLate,
            Situation::StaleWriteRefused,
            Situation::NewerWriteAccepted,
        ],
        ..Config::default()
    }
}

/// Late and lost heartbeats, and a worker that crashes.
pub(super) fn heartbeats() -> Config {
    Config {
        name: "heartbeats",
        heartbeat_count: 2,
        crashes: 1,
        must_cover: &[
            Situation::Extended,
            Situation::ExtendedAfterItsEnd,
            Situation::HeartbeatRefused,
            Situation::Recovered,
            Situation::LiveLeaseSpared,
            Situation::CrashedWithALease,
        ],
        ..Config::default()
    }
}

/// Every result of an attempt, sent once or twice.
pub(super) fn results() -> Config {
    Config {
        name: "results",
        results: &[
            AttemptEnd::Done,
            AttemptEnd::Again,
            AttemptEnd::Fail,
            AttemptEnd::Snooze,
            AttemptEnd::Return,
        ],
        duplicates: 1,
        must_cover: &[
            Situation::Succeeded,
            Situation::Failed,
            Situation::RetryScheduled,
            Situation::Snoozed,
            Situation::Returned,
            Situation::AttemptsUsedUp,
            Situation::SettledAfterItsEnd,
            Situation::SettledAgain,
            Situation::StaleSettlementRefused,
            Situation::Promoted,
            Situation::LeasedToInactiveWorker,
        ],
        ..Config::default()
    }
}

/// People cancel and retry at any time.
pub(super) fn by_hand() -> Config {
    Config {
        name: "by hand",
        heartbeat_count: 1,
        results: &[AttemptEnd::Done, AttemptEnd::Again, AttemptEnd::Fail],
        cancels: 1,
        retries: 1,
        ticks: 1,
        must_cover: &[
            Situation::Aborted,
            Situation::CancelledAtRest,
            Situation::CancelledWhileRunning,
            Situation::CancelRefused,
            Situation::ExtendedWithCancel,
            Situation::AbortedByRecovery,
            Situation::RetriedByHand,
            Situation::RunNowByHand,
            Situation::RetryRefused,
            Situation::StaleSettlementRefused,
        ],
        ..Config::default()
    }
}

/// People change a task after it has changed since their read.
pub(super) fn updates() -> Config {
    Config {
        name: "updates",
        results: &[AttemptEnd::Done, AttemptEnd::Again],
        updates: 2,
        must_cover: &[
            Situation::Updated,
            Situation::UpdateRefused,
            Situation::VersionConflict,
            Situation::Promoted,
        ],
        ..Config::default()
    }
}

/// Two sweepers with stale reads, and a recovery.
pub(super) fn sweepers() -> Config {
    Config {
        name: "sweepers",
        heartbeat_count: 1,
        sweeper_reads: 2,
        must_cover: &[
            Situation::Extended,
            Situation::ExtendedAfterItsEnd,
            Situation::HeartbeatRefused,
            Situation::Recovered,
            Situation::OutdatedSweep,
            Situation::TwoSweepersAtOnce,
            Situation::LiveLeaseSpared,
            Situation::StaleSettlementRefused,
        ],
        ..Config::default()
    }
}

/// Two tasks with one lock, one of which is not due yet.
pub(super) fn locked() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    Config {
        name: "locked",
        tasks: vec![task.clone(), Plan { after: 1, ..task }],
        results: &[AttemptEnd::Done, AttemptEnd::Snooze, AttemptEnd::Return],
        cancels: 1,
        must_cover: &[
            Situation::Succeeded,
            Situation::Snoozed,
            Situation::Returned,
            Situation::FailedByRecovery,
            Situation::CancelledAtRest,
            Situation::CancelledWhileRunning,
            Situation::Promoted,
            Situation::PromotedIntoAHeldLock,
            Situation::Unblocked,
        ],
        ..Config::default()
    }
}

/// Three tasks with one lock that exist at once, and people who snooze or retry one of them.
pub(super) fn queue() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    Config {
        name: "queue",
        tasks: vec![task; 3],
        workers: &[2],
        ticks: 1,
        retries: 1,
        updates: 1,
        results: &[AttemptEnd::Done, AttemptEnd::Fail],
        must_cover: &[
            Situation::Succeeded,
            Situation::Failed,
            Situation::Unblocked,
            Situation::Updated,
            Situation::RetriedByHand,
        ],
        ..Config::default()
    }
}

/// Tasks with one lock in two queues, each with its own worker: neither queue waits for the other.
pub(super) fn queues() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    let other = Plan { queue: 1, ..task.clone() };
    Config {
        name: "queues",
        tasks: vec![task.clone(), other.clone(), Plan { adds: 1, ..other }],
        workers: &[1, 2],
        separate_queues: true,
        ticks: 1,
        results: &[AttemptEnd::Done, AttemptEnd::Return],
        must_cover: &[Situation::Succeeded, Situation::Returned, Situation::Unblocked],
        ..Config::default()
    }
}

/// Tasks with one lock, the later ones with higher priority.
pub(super) fn priorities() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    Config {
        name: "priorities",
        tasks: vec![
            task.clone(),
            Plan { adds: 1, priority: 1, ..task.clone() },
            Plan { adds: 1, priority: 1, after: 1, ..task },
        ],
        workers: &[2],
        results: &[AttemptEnd::Done, AttemptEnd::Snooze, AttemptEnd::Return],
        must_cover: &[
            Situation::Succeeded,
            Situation::Returned,
            Situation::Unblocked,
            Situation::HeadReplaced,
            Situation::PromotedIntoAHeldLock,
        ],
        ..Config::default()
    }
}

/// Tasks that are run by the processes that added them, in front of one that any worker may run.
pub(super) fn runners() -> Config {
    let task = Plan { lock: true, attempts: 1, ..Plan::default() };
    let runner_ttl = Plan { runner_ttl: 1, ..task.clone() };
    Config {
        name: "runners",
        tasks: vec![runner_ttl.clone(), Plan { adds: 1, ..runner_ttl }, task],
        workers: &[2],
        results: &[AttemptEnd::Done, AttemptEnd::Return],
        sweeps: 2,
        runner_renewals: 2,
        must_cover: &[
            Situation::Succeeded,
            Situation::Returned,
            Situation::Abandoned,
            Situation::RunnerRenewed,
            Situation::Unblocked,
            Situation::LiveLeaseSpared,
        ],
        ..Config::default()
    }
}

/// A task that two callers enqueue at once under one key, each of them twice.
pub(super) fn keys() -> Config {
    let task = Plan { key: true, attempts: 1, adds: 2, ..Plan::default() };
    Config {
        name: "keys",
        tasks: vec![task.clone(), task],
        workers: &[1],
        results: &[AttemptEnd::Done, AttemptEnd::Fail],
        must_cover: &[Situation::Succeeded, Situation::Duplicate, Situation::EnqueuedAgain],
        ..Config::default()
    }
}

/// A key that may be used again once its task has finished, or once it has failed.
pub(super) fn reused_keys() -> Config {
    let task = Plan { key: true, attempts: 1, adds: 2, ..Plan::default() };
    Config {
        name: "reused keys",
        tasks: vec![
            Plan { reuse: Reuse::Finished, ..task.clone() },
            Plan { reuse: Reuse::Failed, adds: 1, ..task },
        ],
        workers: &[2],
        ticks: 1,
        results: &[AttemptEnd::Done, AttemptEnd::Fail],
        retries: 1,
        must_cover: &[
            Situation::Duplicate,
            Situation::EnqueuedAgain,
            Situation::KeyReused,
            Situation::RetriedByHand,
        ],
        ..Config::default()
    }
}

/// Tasks that are added only within the limit of the lock queue; some of them have a key.
pub(super) fn room() -> Config {
    let task = Plan { lock: true, room: Some(0), attempts: 1, adds: 1, ..Plan::default() };
    let keyed = Plan { key: true, reuse: Reuse::Failed, ..task.clone() };
    let patient = Plan { room: Some(1), ..task };
    Config {
        name: "queue limit",
        tasks: vec![keyed.clone(), keyed, patient.clone(), patient],
        workers: &[2],
        ticks: 1,
        sweeps: 0,
        results: &[AttemptEnd::Done, AttemptEnd::Fail],
        must_cover: &[
            Situation::LockQueueFull,
            Situation::NoRoomForBlocked,
            Situation::NoRoomForAFreeKey,
            Situation::Duplicate,
            Situation::KeyReused,
            Situation::Unblocked,
        ],
        ..Config::default()
    }
}

/// Workers that miss responses, and then query which tasks they were given.
pub(super) fn missed_responses() -> Config {
    Config {
        name: "missed",
        workers: &[2],
        sweeps: 2,
        missed_responses: true,
        must_cover: &[
            Situation::UnconfirmedTaken,
            Situation::UnconfirmedWasKnown,
            Situation::SameWorkerAgain,
            Situation::ReplyTooLate,
            Situation::LeasedToInactiveWorker,
            Situation::StaleSettlementRefused,
        ],
        ..Config::default()
    }
}

/// Workers that prefetch a task, start it or not, report the start or not, and die.
pub(super) fn ahead() -> Config {
    Config {
        name: "prefetch",
        workers: &[2, 1],
        ticks: 3,
        heartbeat_count: 1,
        sweeps: 1,
        ahead: true,
        results: &[AttemptEnd::Done, AttemptEnd::Again],
        must_cover: &[
            Situation::Prefetched,
            Situation::EndedUnstarted,
            Situation::StartUnreported,
            Situation::StartReported,
            Situation::EndedByALease,
            Situation::Returned,
            Situation::Succeeded,
        ],
        ..Config::default()
    }
}

/// Workers that wait for the lock of a task, report its start once they have the lock, and die before or after
/// that.
pub(super) fn waiting() -> Config {
    Config {
        name: "waiting",
        tasks: vec![Plan { lock: true, attempts: 1, ..Plan::default() }],
        workers: &[1, 1],
        heartbeat_count: 1,
        crashes: 1,
        waits_for_locks: true,
        results: &[AttemptEnd::Done],
        must_cover: &[
            Situation::EndedUnstarted,
            Situation::StartReported,
            Situation::EndedByALease,
            Situation::FailedByRecovery,
            Situation::Returned,
            Situation::Succeeded,
            Situation::CrashedWithALease,
        ],
        ..Config::default()
    }
}

/// A task whose workers die repeatedly.
pub(super) fn lost_leases() -> Config {
    Config {
        name: "lost leases",
        tasks: vec![Plan { attempts: 3, ..Plan::default() }],
        workers: &[3],
        ticks: 7,
        sweeps: 2,
        must_cover: &[
            Situation::Alone,
            Situation::EndedByALease,
            Situation::Recovered,
            Situation::Promoted,
            Situation::Succeeded,
        ],
        ..Config::default()
    }
}

/// Tasks that are leased together, and whose workers die repeatedly.
pub(super) fn repeated_crashes() -> Config {
    Config {
        name: "crashes",
        tasks: vec![Plan { attempts: 3, ..Plan::default() }, Plan::default()],
        workers: &[3],
        ticks: 7,
        sweeps: 2,
        max: 2,
        must_cover: &[
            Situation::Alone,
            Situation::EndedByALease,
            Situation::Recovered,
            Situation::FailedByRecovery,
            Situation::Succeeded,
        ],
        ..Config::default()
    }
}

/// Two tasks and two workers with everything at once, as far as it can be seen.
pub(super) fn three_workers() -> Config {
    Config {
        name: "three workers",
        tasks: vec![Plan { lock: true, ..Plan::default() }, Plan { lock: true, adds: 1, ..Plan::default() }],
        workers: &[2, 2, 2],
        heartbeat_count: 2,
        results: &[AttemptEnd::Done, AttemptEnd::Again, AttemptEnd::Snooze],
        crashes: 1,
        cancels: 1,
        retries: 1,
        sweeps: 2,
        sweeper_reads: 1,
        duplicates: 1,
        depth: Some(7),
        must_cover: &[
            Situation::Succeeded,
            Situation::Extended,
            Situation::Recovered,
            Situation::Unblocked,
            Situation::CrashedWithALease,
        ],
        ..Config::default()
    }
}
