//! Mutants of the rules: the fault of each, the configuration that shows it, and the property that
//! it breaks. Every mutant must be caught by that property.
//!
//! Each mutant wraps the correct rules from outside and changes their input or output, so that the
//! rules themselves contain no test code.

use leasehold_model::{Applied, LeaseStatus, LockOp, LockRecord, Timestamp, TokenFloor, Ttl};

use super::config::Config;
use super::properties::Property::{self, *};
use super::rules::{CORRECT, Rules};
use super::system::System;
use super::{configurations, mutants_leases as leases, mutants_queue as queue};
use crate::shared;

type Mutant = shared::Mutant<System>;

fn all() -> Vec<Mutant> {
    let mut all = of_leases();
    all.extend(of_queue());
    all.extend(of_clients());
    all.extend(of_deletion());
    all
}

/// Mutants of stores, which delete locks wrongly.
fn of_deletion() -> Vec<Mutant> {
    use configurations::{clock_set_back, deletion};
    let not_raised = Rules {
        forget: |record, floor, now, idle| (floor, CORRECT_FORGET(record, floor, now, idle).1),
        ..CORRECT
    };
    let not_read = Rules { make: |name, _, _| LockRecord::new(name), ..CORRECT };
    let read_before = Rules { make: |name, _, sent| LockRecord::without_record(name, sent), ..CORRECT };
    let with_tickets = Rules {
        forget: |record, floor, now, idle| {
            let floor = floor.raised(now, idle);
            (floor, record.live(now).next().is_none() && record.token <= floor.token())
        },
        ..CORRECT
    };
    let while_retained = Rules {
        forget: |record, floor, now, idle| {
            let floor = floor.raised(now, idle);
            let working = record.holders.iter().any(|lease| lease.status != LeaseStatus::Released);
            (floor, !working && record.waiters.is_empty() && record.token <= floor.token())
        },
        ..CORRECT
    };
    let above = Rules {
        forget: |record, floor, now, idle| {
            let floor = floor.raised(now, idle);
            (floor, record.holders.is_empty() && record.waiters.is_empty())
        },
        ..CORRECT
    };
    let follows = Rules {
        forget: |record, _, now, idle| CORRECT_FORGET(record, TokenFloor::default(), now, idle),
        ..CORRECT
    };
    let mutant = |name, rules, config, breaks| Mutant { name, rules, config, breaks };
    vec![
        mutant("a deletion does not raise the minimum token", not_raised, clock_set_back, TokensRise),
        mutant("a lock is created without the minimum token", not_read, clock_set_back, TokensRise),
        mutant("the minimum token is read before the step", read_before, clock_set_back, TokensRise),
        mutant("a lock with a token above the minimum is deleted", above, clock_set_back, TokensRise),
        mutant(
            "the minimum token follows a clock that was set back",
            follows,
            clock_set_back,
            FloorNeverFalls,
        ),
        mutant("a lock is deleted while a request waits", with_tickets, deletion, UsedLockIsNotDeleted),
        mutant("a lock is deleted while it is retained", while_retained, deletion, UsedLockIsNotDeleted),
    ]
}

const CORRECT_FORGET: fn(&LockRecord, TokenFloor, Timestamp, Ttl) -> (TokenFloor, bool) = CORRECT.forget;

#[rustfmt::skip]
fn of_leases() -> Vec<Mutant> {
    use configurations::{alternating, counted, everything, retained, retries, shared, stealing, sweepers};
    vec![
        mutant("a grant does not raise the token", leases::grant_keeps_token, alternating, TokensRise),
        mutant("two leases write with one token", leases::grant_keeps_token, alternating, WritesNeverGoBack),
        mutant("the counter is reset with the last lease", leases::counter_is_reset, alternating, TokensRise),
        mutant("any release counts", leases::any_holder_releases, alternating, OnlyItsOwnRequestChangesALease),
        mutant("a release with an old token counts", leases::old_token_releases, retries, OnlyItsOwnRequestChangesALease),
        mutant("any renewal counts", leases::any_holder_renews, alternating, OnlyItsOwnRequestChangesALease),
        mutant("a renewal revives an ended lease", leases::renewal_revives, alternating, EndedStaysEnded),
        mutant("a lease never expires", leases::lease_never_ends, alternating, EndedStaysEnded),
        mutant("a lease expires a tick early", leases::lease_ends_early, alternating, NoTwoBeliefs),
        mutant("a renewal adds no time", leases::renewal_adds_nothing, alternating, BeliefIsBacked),
        mutant("a forced release keeps the token", leases::force_keeps_the_token, everything, ForcedTokenIsOld),
        mutant("a forced release ignores the token", leases::force_ignores_token, everything, OnlyItsOwnRequestChangesALease),
        mutant("a repeated acquire is a second grant", leases::repeated_acquire_grants_again, retries, RepeatedAcquireIsTheSameLease),
        mutant("a sweep ends every lease", leases::sweep_ends_all, sweepers, SweepEndsNoLiveLease),
        mutant("a steal ignores staleness", leases::steal_ignores_staleness, stealing, OnlyItsOwnRequestChangesALease),
        mutant("a reader joins a writer", leases::reader_joins_writer, shared, NoTwoBeliefs),
        mutant("there is one slot too many", leases::one_slot_too_many, counted, SlotsAreRespected),
        mutant("a holder's own limit is ignored", leases::holders_limit_is_ignored, counted, SlotsAreRespected),
        mutant("a lease is not retained for its time", leases::at_least_is_ignored, retained, RetainedLeaseStays),
        mutant("an expiry has no event", leases::expiry_has_no_event, alternating, EventsMatchTheRecord),
        mutant("a renewal is not written", leases::renewal_is_not_written, alternating, EngineIsInformed),
    ]
}

#[rustfmt::skip]
fn of_queue() -> Vec<Mutant> {
    use configurations::{priority, shared, sweepers, three};
    vec![
        mutant("a newcomer skips the queue", queue::newcomer_skips_queue, three, NoWaiterIsOvertaken),
        mutant("the queue is last-in first-out", queue::queue_is_lifo, three, NoWaiterIsOvertaken),
        mutant("a reader skips a waiting writer", queue::reader_skips_writer, shared, NoWaiterIsOvertaken),
        mutant("priority is ignored", queue::priority_is_ignored, priority, NoWaiterIsOvertaken),
        mutant("waiting time is ignored", queue::waiting_is_ignored, priority, NoWaiterIsOvertaken),
        mutant("a release grants nothing", queue::release_grants_nothing, three, NoWaiterWaitsForAFreeLock),
        mutant("a withdrawal grants nothing", queue::withdraw_grants_nothing, shared, NoWaiterWaitsForAFreeLock),
        mutant("a dead waiter is granted its whole ttl", queue::granted_for_whole_ttl, three, DeadWaiterDelaysByItsTicket),
        mutant("a dead waiter's lease never ends", queue::granted_forever, three, DeadWaiterDelaysByItsTicket),
        mutant("a ticket never expires", queue::ticket_never_ends, three, EndedStaysEnded),
        mutant("a repeated acquire does not extend the ticket", queue::ticket_is_not_extended, sweepers, DeadWaiterDelaysByItsTicket),
        mutant("a withdrawal removes another ticket", queue::withdraw_removes_another, three, OnlyItsOwnRequestChangesATicket),
        mutant("a withdrawal ignores a missed grant", queue::withdraw_ignores_grant, three, OnlyItsOwnRequestChangesALease),
        mutant("one dead waiter ends the whole queue", queue::sweep_ends_the_queue, sweepers, OnlyItsOwnRequestChangesATicket),
        mutant("no waiter is notified", queue::no_waiter_is_notified, three, EngineIsInformed),
    ]
}

/// Mutants of the client and of the resource: the properties also depend on these.
fn of_clients() -> Vec<Mutant> {
    let from_receipt = Rules { until: |_, received, ttl| received.plus(ttl), ..CORRECT };
    let late = Rules { until: |sent, received, ttl| sent.plus(ttl).max(received.plus(Ttl::MIN)), ..CORRECT };
    let open = Rules { admit: |_, _| true, ..CORRECT };
    let mutant = |name, rules, breaks| Mutant { name, rules, config: configurations::alternating, breaks };
    vec![
        mutant("a worker counts from the reply", from_receipt, NoTwoBeliefs),
        mutant("a worker accepts a late reply", late, LateReplyIsNoAcquisition),
        mutant("the resource accepts every write", open, WritesNeverGoBack),
    ]
}

type Apply = fn(&mut LockRecord, &LockOp, Timestamp) -> Applied;

fn mutant(name: &'static str, apply: Apply, config: fn() -> Config, breaks: Property) -> Mutant {
    let rules = Rules { apply, ..CORRECT };
    Mutant { name, rules, config, breaks }
}

#[test]
fn every_mutant_is_caught() {
    shared::every_mutant_is_caught(&all());
}

#[test]
fn every_property_catches_a_mutant() {
    shared::every_property_catches_a_mutant(&all());
}
