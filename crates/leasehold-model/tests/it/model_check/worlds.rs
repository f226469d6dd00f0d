//! The worlds that are explored: each small enough to be seen whole, each aimed at one theme.

use leasehold_model::{Mode, Ttl};

use super::config::{Config, Plan};
use super::facts::Fact;

/// Two workers and everything at once: renewals, releases, writes in flight, a crash, an admin, two sweepers.
pub(super) fn everything() -> Config {
    Config {
        name: "everything",
        workers: vec![Plan { renewals: 1, ..Plan::default() }, Plan::default()],
        writes: 2,
        crashes: 1,
        forces: 1,
        sweeps: 2,
        must_see: &[
            Fact::Renewed,
            Fact::RenewalRefused,
            Fact::Released,
            Fact::ReleaseRefused,
            Fact::Expired,
            Fact::Forced,
            Fact::OutdatedForceRefused,
            Fact::Buried,
            Fact::OutdatedSweep,
            Fact::TwoSweepersAtOnce,
            Fact::GrantedToNobody,
            Fact::ReplyTooLate,
            Fact::CrashedWithRequestInFlight,
            Fact::TwoHoldersWritesInFlight,
            Fact::StaleWriteRefused,
            Fact::NewerWriteAccepted,
        ],
        ..Config::default()
    }
}

/// A lock that goes from hand to hand and back.
pub(super) fn in_turn() -> Config {
    let worker = Plan { renewals: 1, ..Plan::default() };
    Config {
        name: "in turn",
        workers: vec![Plan { attempts: 2, ..worker.clone() }, worker],
        writes: 2,
        must_see: &[
            Fact::Renewed,
            Fact::RenewalRefused,
            Fact::ReleaseRefused,
            Fact::Expired,
            Fact::ReplyTooLate,
            Fact::TwoHoldersWritesInFlight,
            Fact::StaleWriteRefused,
        ],
        ..Config::default()
    }
}

/// Renewals that ask for less time than the lease had, and holders who are asked to stop.
pub(super) fn shorter() -> Config {
    let worker = Plan { ttl: 3, renewals: 2, renew_for: Some(1), ..Plan::default() };
    Config {
        name: "shorter",
        workers: vec![worker, Plan::default()],
        stops: 1,
        must_see: &[Fact::Renewed, Fact::RenewalRefused, Fact::Stopped, Fact::Expired],
        ..Config::default()
    }
}

/// Answers that are late or lost, and requests that are made again or taken back.
pub(super) fn retries() -> Config {
    let worker = Plan { asks: 2, ..Plan::default() };
    Config {
        name: "retries",
        workers: vec![Plan { leaves: true, ..worker.clone() }, worker],
        writes: 2,
        must_see: &[
            Fact::SameLeaseAgain,
            Fact::SecondGrantOfOneRequest,
            Fact::GrantedToNobody,
            Fact::ReplyTooLate,
            Fact::StaleWriteRefused,
        ],
        ..Config::default()
    }
}

/// A network that delivers a request twice.
pub(super) fn twice() -> Config {
    Config {
        name: "twice",
        workers: vec![Plan { asks: 2, ..Plan::default() }, Plan::default()],
        writes: 2,
        duplicates: 1,
        must_see: &[
            Fact::SameLeaseAgain,
            Fact::SecondGrantOfOneRequest,
            Fact::GrantedToNobody,
            Fact::ReleaseRefused,
            Fact::StaleWriteRefused,
        ],
        ..Config::default()
    }
}

/// What every world with a queue has to show.
const QUEUE: &[Fact] = &[
    Fact::HandedOver,
    Fact::TicketLeft,
    Fact::TicketExpired,
    Fact::LeaseOfWaiterExpired,
    Fact::SameLeaseAgain,
];

/// Tickets that are drawn, given up, run out or turn into leases that nobody takes up.
pub(super) fn queue() -> Config {
    let worker = Plan { queue: Some(1), ..Plan::default() };
    Config {
        name: "queue",
        workers: vec![Plan { attempts: 2, leaves: true, ..worker.clone() }, Plan { asks: 2, ..worker }],
        must_see: QUEUE,
        ..Config::default()
    }
}

/// A waiter whose last asking does not want to wait any more.
pub(super) fn impatient() -> Config {
    let worker = Plan { queue: Some(1), ..Plan::default() };
    Config {
        name: "impatient",
        workers: vec![worker.clone(), Plan { asks: 3, impatient: true, ..worker }],
        must_see: QUEUE,
        ..Config::default()
    }
}

/// Three in a queue.
pub(super) fn three() -> Config {
    let worker = Plan { queue: Some(1), ..Plan::default() };
    let leaver = Plan { leaves: true, ..worker.clone() };
    Config {
        name: "three",
        workers: vec![worker.clone(), leaver, Plan { asks: 2, ..worker }],
        must_see: QUEUE,
        ..Config::default()
    }
}

/// Dead holders and dead waiters, and two sweepers who act on what they saw a while ago.
pub(super) fn sweepers() -> Config {
    let worker = Plan { queue: Some(2), ..Plan::default() };
    Config {
        name: "sweepers",
        workers: vec![Plan { renewals: 1, ..worker.clone() }, Plan { asks: 2, ..worker }],
        crashes: 2,
        sweeps: 2,
        must_see: &[
            Fact::HandedOver,
            Fact::Buried,
            Fact::OutdatedSweep,
            Fact::TwoSweepersAtOnce,
            Fact::Renewed,
            Fact::CrashedWithRequestInFlight,
        ],
        ..Config::default()
    }
}

/// Two readers and a writer.
pub(super) fn shared() -> Config {
    let reader = Plan { mode: Mode::Shared, queue: Some(2), steal_after: Some(1), ..Plan::default() };
    let writer = Plan { mode: Mode::Exclusive, leaves: true, ..reader.clone() };
    Config {
        name: "shared",
        workers: vec![reader.clone(), writer, Plan { attempts: 2, ..reader }],
        must_see: &[Fact::Shared, Fact::HandedOver, Fact::TicketLeft, Fact::TicketExpired],
        ..Config::default()
    }
}

/// Three waiters of which one counts for more; a tick is half of what a step of priority is worth.
pub(super) fn priority() -> Config {
    let worker = Plan { queue: Some(3), ..Plan::default() };
    let [first, second] = [Plan { ttl: 3, ..worker.clone() }, Plan { asks: 2, ..worker.clone() }];
    Config {
        name: "priority",
        workers: vec![first, second, Plan { priority: 1, ..worker }],
        tick: Ttl::from_secs(15),
        must_see: &[Fact::Overtaken, Fact::HandedOver, Fact::TicketExpired],
        ..Config::default()
    }
}

/// A lock with two places, and a worker who wants to be alone.
pub(super) fn counted() -> Config {
    let worker = Plan { slots: 2, queue: Some(2), ..Plan::default() };
    Config {
        name: "counted",
        workers: vec![worker.clone(), worker.clone(), Plan { slots: 1, attempts: 2, ..worker }],
        must_see: &[Fact::TwoSlots, Fact::HandedOver, Fact::TicketExpired],
        ..Config::default()
    }
}

/// Two who take what the other has not renewed.
pub(super) fn thieves() -> Config {
    let worker = Plan { steal_after: Some(1), ..Plan::default() };
    Config {
        name: "thieves",
        workers: vec![Plan { renewals: 1, ..worker.clone() }, Plan { queue: Some(2), asks: 2, ..worker }],
        writes: 2,
        must_see: &[
            Fact::Stolen,
            Fact::HandedOver,
            Fact::Renewed,
            Fact::RenewalRefused,
            Fact::StaleWriteRefused,
        ],
        ..Config::default()
    }
}

/// Leases that keep others out for a while after they are given back.
pub(super) fn kept() -> Config {
    let worker = Plan { at_least: Some(2), queue: Some(2), steal_after: Some(1), ..Plan::default() };
    Config {
        name: "kept",
        workers: vec![Plan { attempts: 2, ..worker.clone() }, Plan { asks: 2, ..worker }],
        duplicates: 1,
        must_see: &[Fact::Kept, Fact::ReleasedTwice, Fact::HandedOver, Fact::Expired],
        ..Config::default()
    }
}

/// A lock that is forgotten while it is idle, among waiters, kept leases and an admin.
pub(super) fn forgetful() -> Config {
    let worker = Plan { queue: Some(1), at_least: Some(1), ttl: 1, ..Plan::default() };
    Config {
        name: "forgetful",
        workers: vec![Plan { attempts: 2, ..worker.clone() }, worker],
        forces: 1,
        forgets: 2,
        must_see: &[
            Fact::Forgotten,
            Fact::NotForgotten,
            Fact::MadeAgain,
            Fact::Kept,
            Fact::Forced,
            Fact::HandedOver,
            Fact::ReleaseRefused,
        ],
        ..Config::default()
    }
}

/// The same with an engine whose clock is set back, so that the floor alone keeps tokens rising.
pub(super) fn set_back() -> Config {
    let worker = Plan { ttl: 1, ..Plan::default() };
    Config {
        name: "set back",
        workers: vec![Plan { attempts: 2, ..worker.clone() }, worker],
        ticks: 2,
        forgets: 2,
        set_backs: 1,
        must_see: &[Fact::Forgotten, Fact::NotForgotten, Fact::MadeAgain, Fact::Expired, Fact::Released],
        ..Config::default()
    }
}

/// Three workers and everything, as far as it goes in so many steps.
pub(super) fn crowd() -> Config {
    let worker = Plan { queue: Some(1), ..Plan::default() };
    Config {
        name: "crowd",
        workers: vec![Plan { renewals: 1, ..worker.clone() }, worker.clone(), Plan { queue: None, ..worker }],
        writes: 2,
        crashes: 1,
        forces: 1,
        sweeps: 2,
        depth: Some(11),
        must_see: &[
            Fact::HandedOver,
            Fact::Renewed,
            Fact::Released,
            Fact::Expired,
            Fact::Forced,
            Fact::Buried,
            Fact::TwoSweepersAtOnce,
        ],
        ..Config::default()
    }
}
