//! Configurations that are explored, and the tests that the rules have every property in them. Each
//! configuration is small enough to be visited completely, and covers one subject.

use leasehold_model::{Mode, Ttl};

use super::config::{Config, Plan};
use super::coverage::Situation;
use super::rules::CORRECT;
use super::system::System;
use crate::shared::{explore, passes};

passes! {
    two_workers_never_both_believe_to_hold: everything,
    a_lock_changes_holders_and_old_writes_are_refused: alternating,
    a_shorter_renewal_leaves_no_belief_behind: shorter_renewals,
    a_lost_reply_and_a_retry_create_one_lease: retries,
    a_request_delivered_twice_is_harmless: duplicates,
    a_silent_waiter_blocks_no_other: queue,
    the_last_request_acquires_the_lock_or_leaves_the_queue: stops_waiting,
    three_waiters_are_granted_in_order: three,
    two_sweepers_with_stale_reads_end_no_live_lease: sweepers,
    readers_and_a_writer_never_hold_together: shared,
    priority_goes_first_and_waiting_time_catches_up: priority,
    a_counted_lock_has_no_more_holders_than_any_of_them_accepts: counted,
    a_deleted_and_recreated_lock_has_every_property: deletion,
    tokens_rise_across_a_deletion_and_a_clock_set_back: clock_set_back,
    a_steal_takes_only_stale_leases: stealing,
    a_retained_lease_keeps_others_out_for_its_time: retained,
    three_workers_have_every_property_within_a_bound: three_workers,
}

/// Two workers and all events: renewals, releases, writes in flight, a crash, an admin, two
/// sweepers.
pub(super) fn everything() -> Config {
    Config {
        name: "everything",
        workers: vec![Plan { renewals: 1, ..Plan::default() }, Plan::default()],
        writes: 2,
        crashes: 1,
        forces: 1,
        sweeps: 2,
        must_cover: &[
            Situation::Renewed,
            Situation::RenewalRefused,
            Situation::Released,
            Situation::ReleaseRefused,
            Situation::Expired,
            Situation::Forced,
            Situation::OutdatedForceRefused,
            Situation::DeadWorkerEnded,
            Situation::OutdatedSweep,
            Situation::TwoSweepersAtOnce,
            Situation::GrantedToInactiveWorker,
            Situation::ReplyTooLate,
            Situation::CrashedWithRequestInFlight,
            Situation::TwoHoldersWritesInFlight,
            Situation::StaleWriteRefused,
            Situation::NewerWriteAccepted,
        ],
        ..Config::default()
    }
}

/// A lock that changes holders and returns to the first.
pub(super) fn alternating() -> Config {
    let worker = Plan { renewals: 1, ..Plan::default() };
    Config {
        name: "alternating",
        workers: vec![Plan { attempts: 2, ..worker.clone() }, worker],
        writes: 2,
        must_cover: &[
            Situation::Renewed,
            Situation::RenewalRefused,
            Situation::ReleaseRefused,
            Situation::Expired,
            Situation::ReplyTooLate,
            Situation::TwoHoldersWritesInFlight,
            Situation::StaleWriteRefused,
        ],
        ..Config::default()
    }
}

/// Renewals for a shorter TTL, and release requests to holders.
pub(super) fn shorter_renewals() -> Config {
    let worker = Plan { ttl: 3, renewals: 2, renew_for: Some(1), ..Plan::default() };
    Config {
        name: "shorter ttl",
        workers: vec![worker, Plan::default()],
        stops: 1,
        must_cover: &[
            Situation::Renewed,
            Situation::RenewalRefused,
            Situation::ReleaseRequested,
            Situation::Expired,
        ],
        ..Config::default()
    }
}

/// Late and lost responses, and requests that are repeated or withdrawn.
pub(super) fn retries() -> Config {
    let worker = Plan { sends: 2, ..Plan::default() };
    Config {
        name: "retries",
        workers: vec![Plan { withdraws: true, ..worker.clone() }, worker],
        writes: 2,
        must_cover: &[
            Situation::SameLeaseAgain,
            Situation::SecondGrantOfOneRequest,
            Situation::GrantedToInactiveWorker,
            Situation::ReplyTooLate,
            Situation::StaleWriteRefused,
        ],
        ..Config::default()
    }
}

/// A network that delivers a request twice.
pub(super) fn duplicates() -> Config {
    Config {
        name: "duplicates",
        workers: vec![Plan { sends: 2, ..Plan::default() }, Plan::default()],
        writes: 2,
        duplicates: 1,
        must_cover: &[
            Situation::SameLeaseAgain,
            Situation::SecondGrantOfOneRequest,
            Situation::GrantedToInactiveWorker,
            Situation::ReleaseRefused,
            Situation::StaleWriteRefused,
        ],
        ..Config::default()
    }
}

/// Situations that every configuration with a queue has to cover.
const QUEUE: &[Situation] = &[
    Situation::HandedOver,
    Situation::TicketLeft,
    Situation::TicketExpired,
    Situation::LeaseOfWaiterExpired,
    Situation::SameLeaseAgain,
];

/// Tickets that are created, withdrawn, expire, or become leases that their workers do not confirm.
pub(super) fn queue() -> Config {
    let worker = Plan { queue: Some(1), ..Plan::default() };
    Config {
        name: "queue",
        workers: vec![Plan { attempts: 2, withdraws: true, ..worker.clone() }, Plan { sends: 2, ..worker }],
        must_cover: QUEUE,
        ..Config::default()
    }
}

/// A waiter whose last request does not wait any more.
pub(super) fn stops_waiting() -> Config {
    let worker = Plan { queue: Some(1), ..Plan::default() };
    Config {
        name: "stops waiting",
        workers: vec![worker.clone(), Plan { sends: 3, stops_waiting: true, ..worker }],
        must_cover: QUEUE,
        ..Config::default()
    }
}

/// Three waiters in a queue.
pub(super) fn three() -> Config {
    let worker = Plan { queue: Some(1), ..Plan::default() };
    let leaver = Plan { withdraws: true, ..worker.clone() };
    Config {
        name: "three",
        workers: vec![worker.clone(), leaver, Plan { sends: 2, ..worker }],
        must_cover: QUEUE,
        ..Config::default()
    }
}

/// Dead holders and dead waiters, and two sweepers that act on stale reads.
pub(super) fn sweepers() -> Config {
    let worker = Plan { queue: Some(2), ..Plan::default() };
    Config {
        name: "sweepers",
        workers: vec![Plan { renewals: 1, ..worker.clone() }, Plan { sends: 2, ..worker }],
        crashes: 2,
        sweeps: 2,
        must_cover: &[
            Situation::HandedOver,
            Situation::DeadWorkerEnded,
            Situation::OutdatedSweep,
            Situation::TwoSweepersAtOnce,
            Situation::Renewed,
            Situation::CrashedWithRequestInFlight,
        ],
        ..Config::default()
    }
}

/// Two readers and a writer.
pub(super) fn shared() -> Config {
    let reader = Plan { mode: Mode::Shared, queue: Some(2), steal_after: Some(1), ..Plan::default() };
    let writer = Plan { mode: Mode::Exclusive, withdraws: true, ..reader.clone() };
    Config {
        name: "shared",
        workers: vec![reader.clone(), writer, Plan { attempts: 2, ..reader }],
        must_cover: &[
            Situation::Shared,
            Situation::HandedOver,
            Situation::TicketLeft,
            Situation::TicketExpired,
        ],
        ..Config::default()
    }
}

/// Three waiters, one of them with a higher priority; a tick is half of the waiting time that a
/// step of priority is worth.
pub(super) fn priority() -> Config {
    let worker = Plan { queue: Some(3), ..Plan::default() };
    let [first, second] = [Plan { ttl: 3, ..worker.clone() }, Plan { sends: 2, ..worker.clone() }];
    Config {
        name: "priority",
        workers: vec![first, second, Plan { priority: 1, ..worker }],
        tick: Ttl::from_secs(15),
        must_cover: &[Situation::Overtaken, Situation::HandedOver, Situation::TicketExpired],
        ..Config::default()
    }
}

/// A lock with two slots, and a worker that accepts no other holder.
pub(super) fn counted() -> Config {
    let worker = Plan { slots: 2, queue: Some(2), ..Plan::default() };
    Config {
        name: "counted",
        workers: vec![worker.clone(), worker.clone(), Plan { slots: 1, attempts: 2, ..worker }],
        must_cover: &[Situation::TwoSlots, Situation::HandedOver, Situation::TicketExpired],
        ..Config::default()
    }
}

/// Two workers that steal leases that were not renewed.
pub(super) fn stealing() -> Config {
    let worker = Plan { steal_after: Some(1), ..Plan::default() };
    Config {
        name: "stealing",
        workers: vec![Plan { renewals: 1, ..worker.clone() }, Plan { queue: Some(2), sends: 2, ..worker }],
        writes: 2,
        must_cover: &[
            Situation::Stolen,
            Situation::HandedOver,
            Situation::Renewed,
            Situation::RenewalRefused,
            Situation::StaleWriteRefused,
        ],
        ..Config::default()
    }
}

/// Leases that keep others out for a time after their release.
pub(super) fn retained() -> Config {
    let worker = Plan { at_least: Some(2), queue: Some(2), steal_after: Some(1), ..Plan::default() };
    Config {
        name: "retained",
        workers: vec![Plan { attempts: 2, ..worker.clone() }, Plan { sends: 2, ..worker }],
        duplicates: 1,
        must_cover: &[
            Situation::Retained,
            Situation::ReleasedTwice,
            Situation::HandedOver,
            Situation::Expired,
        ],
        ..Config::default()
    }
}

/// A lock that is deleted while it is idle, among waiters, retained leases and an admin.
pub(super) fn deletion() -> Config {
    let worker = Plan { queue: Some(1), at_least: Some(1), ttl: 1, ..Plan::default() };
    Config {
        name: "deletion",
        workers: vec![Plan { attempts: 2, ..worker.clone() }, worker],
        forces: 1,
        deletions: 2,
        must_cover: &[
            Situation::Deleted,
            Situation::NotDeleted,
            Situation::CreatedAgain,
            Situation::Retained,
            Situation::Forced,
            Situation::HandedOver,
            Situation::ReleaseRefused,
        ],
        ..Config::default()
    }
}

/// The same with an engine whose clock is set back, so that only the minimum token keeps tokens
/// rising.
pub(super) fn clock_set_back() -> Config {
    let worker = Plan { ttl: 1, ..Plan::default() };
    Config {
        name: "clock set back",
        workers: vec![Plan { attempts: 2, ..worker.clone() }, worker],
        ticks: 2,
        deletions: 2,
        clock_resets: 1,
        must_cover: &[
            Situation::Deleted,
            Situation::NotDeleted,
            Situation::CreatedAgain,
            Situation::Expired,
            Situation::Released,
        ],
        ..Config::default()
    }
}

/// Three workers and all events, within a bounded number of steps.
pub(super) fn three_workers() -> Config {
    let worker = Plan { queue: Some(1), ..Plan::default() };
    Config {
        name: "three workers",
        workers: vec![Plan { renewals: 1, ..worker.clone() }, worker.clone(), Plan { queue: None, ..worker }],
        writes: 2,
        crashes: 1,
        forces: 1,
        sweeps: 2,
        depth: Some(11),
        must_cover: &[
            Situation::HandedOver,
            Situation::Renewed,
            Situation::Released,
            Situation::Expired,
            Situation::Forced,
            Situation::DeadWorkerEnded,
            Situation::TwoSweepersAtOnce,
        ],
        ..Config::default()
    }
}
