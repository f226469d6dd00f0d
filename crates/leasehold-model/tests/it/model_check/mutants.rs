//! Rules that are wrong on purpose: what each does wrong, in which world it shows, and which promise it breaks.
//!
//! Each wraps the right rules from outside and changes what goes in or what comes out, so that the rules themselves
//! know nothing of it.

use leasehold_model::{Applied, LockOp, LockRecord, Status, Timestamp, TokenFloor, Ttl};

use super::config::Config;
use super::promises::Promise::{self, *};
use super::rules::{RIGHT, Rules};
use super::{mutants_leases as leases, mutants_queue as queue, worlds};

pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) rules: Rules,
    pub(super) world: fn() -> Config,
    pub(super) breaks: Promise,
}

pub(super) fn all() -> Vec<Mutant> {
    let mut all = of_leases();
    all.extend(of_queue());
    all.extend(of_the_other_side());
    all.extend(of_forgetting());
    all
}

/// Stores that forget locks in a wrong way.
fn of_forgetting() -> Vec<Mutant> {
    use worlds::{forgetful, set_back};
    let not_raised = Rules {
        forget: |record, floor, now, idle| (floor, RIGHT_FORGET(record, floor, now, idle).1),
        ..RIGHT
    };
    let not_read = Rules { make: |name, _, _| LockRecord::new(name), ..RIGHT };
    let read_before = Rules { make: |name, _, sent| LockRecord::without_record(name, sent), ..RIGHT };
    let with_tickets = Rules {
        forget: |record, floor, now, idle| {
            let floor = floor.raised(now, idle);
            (floor, record.live(now).next().is_none() && record.token <= floor.token())
        },
        ..RIGHT
    };
    let kept = Rules {
        forget: |record, floor, now, idle| {
            let floor = floor.raised(now, idle);
            let working = record.holders.iter().any(|lease| lease.status != Status::Released);
            (floor, !working && record.waiters.is_empty() && record.token <= floor.token())
        },
        ..RIGHT
    };
    let above = Rules {
        forget: |record, floor, now, idle| {
            let floor = floor.raised(now, idle);
            (floor, record.holders.is_empty() && record.waiters.is_empty())
        },
        ..RIGHT
    };
    let follows = Rules {
        forget: |record, _, now, idle| RIGHT_FORGET(record, TokenFloor::default(), now, idle),
        ..RIGHT
    };
    let mutant = |name: &'static str, rules: Rules, world: fn() -> Config, breaks: Promise| Mutant {
        name,
        rules,
        world,
        breaks,
    };
    vec![
        mutant("forgetting does not raise the floor", not_raised, set_back as fn() -> Config, TokensRise),
        mutant("a lock is made without the floor", not_read, set_back, TokensRise),
        mutant("the floor is read before the step", read_before, set_back, TokensRise),
        mutant("a token above the floor is forgotten", above, set_back, TokensRise),
        mutant("the floor follows a clock that was set back", follows, set_back, FloorNeverFalls),
        mutant("a lock is forgotten while one waits", with_tickets, forgetful, WhatIsUsedIsNotForgotten),
        mutant("a lock is forgotten while it is kept", kept, forgetful, WhatIsUsedIsNotForgotten),
    ]
}

const RIGHT_FORGET: fn(&LockRecord, TokenFloor, Timestamp, Ttl) -> (TokenFloor, bool) = RIGHT.forget;

fn of_leases() -> Vec<Mutant> {
    use worlds::{counted, everything, in_turn, kept, retries, shared, sweepers, thieves};
    vec![
        wrong("a grant does not raise the token", leases::token_is_not_raised, in_turn, TokensRise),
        wrong("two leases write with one token", leases::token_is_not_raised, in_turn, WritesNeverGoBack),
        wrong("the counter goes with the last lease", leases::counter_is_forgotten, in_turn, TokensRise),
        wrong("anybody's release counts", leases::anybody_releases, in_turn, OnlyItsOwnTouchesALease),
        wrong(
            "a release with an old token counts",
            leases::old_token_releases,
            retries,
            OnlyItsOwnTouchesALease,
        ),
        wrong("anybody's renewal counts", leases::anybody_renews, in_turn, OnlyItsOwnTouchesALease),
        wrong("a renewal revives what has ended", leases::renewal_revives, in_turn, EndedStaysEnded),
        wrong("a lease never ends by itself", leases::lease_never_ends, in_turn, EndedStaysEnded),
        wrong("a lease ends a tick too early", leases::lease_ends_early, in_turn, NoTwoBeliefs),
        wrong("a renewal adds no time", leases::renewal_adds_nothing, in_turn, BeliefIsBacked),
        wrong(
            "force leaves the token as it was",
            leases::force_keeps_the_token,
            everything,
            ForcedTokenIsOld,
        ),
        wrong("force takes whoever holds", leases::force_takes_anybody, everything, OnlyItsOwnTouchesALease),
        wrong(
            "asking again is a second grant",
            leases::asking_again_grants_again,
            retries,
            AskingAgainIsTheSameLease,
        ),
        wrong("a sweep ends whatever is there", leases::sweep_ends_all, sweepers, SweepingSparesTheLiving),
        wrong(
            "a thief does not wait for staleness",
            leases::thief_does_not_wait,
            thieves,
            OnlyItsOwnTouchesALease,
        ),
        wrong("a reader joins a writer", leases::reader_joins_writer, shared, NoTwoBeliefs),
        wrong("there is one slot too many", leases::one_slot_too_many, counted, RoomIsKept),
        wrong("a holder's own bound is ignored", leases::holders_bound_is_ignored, counted, RoomIsKept),
        wrong("a lease is not kept for its time", leases::nothing_is_kept, kept, KeptLeaseStays),
        wrong("an expiry is not told", leases::expiry_is_not_told, in_turn, EventsTellTheRecord),
        wrong("a renewal is not written", leases::renewal_is_not_written, in_turn, EngineIsTold),
    ]
}

fn of_queue() -> Vec<Mutant> {
    use worlds::{priority, shared, sweepers, three};
    vec![
        wrong("a newcomer passes the queue", queue::newcomer_passes, three, NobodyIsOvertaken),
        wrong("the last comes first", queue::last_comes_first, three, NobodyIsOvertaken),
        wrong("a reader passes a waiting writer", queue::reader_passes_writer, shared, NobodyIsOvertaken),
        wrong("priority counts for nothing", queue::priority_is_ignored, priority, NobodyIsOvertaken),
        wrong("waiting long counts for nothing", queue::waiting_is_ignored, priority, NobodyIsOvertaken),
        wrong("a release serves nobody", queue::release_serves_nobody, three, NobodyWaitsForAFreeLock),
        wrong("leaving serves nobody", queue::leaving_serves_nobody, shared, NobodyWaitsForAFreeLock),
        wrong(
            "a dead waiter is served for its whole ttl",
            queue::served_for_whole_ttl,
            three,
            DeadWaiterDelaysByItsTicket,
        ),
        wrong("a dead waiter's lease never ends", queue::served_for_ever, three, DeadWaiterDelaysByItsTicket),
        wrong("a ticket never ends by itself", queue::ticket_never_ends, three, EndedStaysEnded),
        wrong(
            "asking again does not prolong the ticket",
            queue::ticket_is_not_prolonged,
            sweepers,
            DeadWaiterDelaysByItsTicket,
        ),
        wrong(
            "leaving removes somebody else",
            queue::leaving_removes_another,
            three,
            OnlyItsOwnTouchesATicket,
        ),
        wrong(
            "leaving forgets a grant that was missed",
            queue::leaving_forgets_the_grant,
            three,
            OnlyItsOwnTouchesALease,
        ),
        wrong(
            "one dead waiter ends the whole queue",
            queue::sweep_ends_the_queue,
            sweepers,
            OnlyItsOwnTouchesATicket,
        ),
        wrong("nobody is woken", queue::nobody_is_woken, three, EngineIsTold),
    ]
}

/// Wrong clients and a wrong resource: the promises hold only with these right too.
fn of_the_other_side() -> Vec<Mutant> {
    let from_receipt = Rules { until: |_, received, ttl| received.plus(ttl), ..RIGHT };
    let late = Rules { until: |sent, received, ttl| sent.plus(ttl).max(received.plus(Ttl::MIN)), ..RIGHT };
    let open = Rules { admit: |_, _| true, ..RIGHT };
    let mutant = |name, rules, breaks| Mutant { name, rules, world: worlds::in_turn, breaks };
    vec![
        mutant("a worker counts from the reply", from_receipt, NoTwoBeliefs),
        mutant("a worker takes a late reply for a lease", late, LateReplyIsNoAcquisition),
        mutant("the resource lets everything in", open, WritesNeverGoBack),
    ]
}

type Apply = fn(&mut LockRecord, &LockOp, Timestamp) -> Applied;

fn wrong(name: &'static str, apply: Apply, world: fn() -> Config, breaks: Promise) -> Mutant {
    let rules = Rules { apply, ..RIGHT };
    Mutant { name, rules, world, breaks }
}
