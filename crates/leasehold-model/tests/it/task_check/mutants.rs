//! Mutants of the rules: the fault of each, the configuration that shows it, and the property that
//! it breaks. Every mutant must be caught by that property.
//!
//! Each mutant wraps the correct rules from outside and changes their input or output, so that the
//! rules themselves contain no test code.

use leasehold_model::{TaskTable, Timestamp, Ttl};

use super::config::Config;
use super::properties::Property::{self, *};
use super::rules::{CORRECT, Op, Response, Rules};
use super::system::System;
use super::{configurations, mutants_leases as leases, mutants_table as table};
use crate::shared;

type Mutant = shared::Mutant<System>;

fn all() -> Vec<Mutant> {
    let mut all = of_leases();
    all.extend(by_hand());
    all.extend(of_the_table());
    all.extend(of_clients());
    all
}

#[rustfmt::skip]
fn of_leases() -> Vec<Mutant> {
    use configurations::{
        ahead, alternating, heartbeats, locked, lost_leases, repeated_crashes, results, sweepers, waiting,
    };
    vec![
        mutant("a lease keeps the token", leases::lease_keeps_the_token, alternating, TokensRise),
        mutant("recovery keeps the token", leases::recovery_keeps_the_token, alternating, TokensRise),
        mutant("any token settles", leases::any_token_settles, alternating, StaleSettlementChangesNothing),
        mutant("any token sends heartbeats", leases::any_token_sends_heartbeats, heartbeats, OnlyTheTokenSendsHeartbeats),
        mutant("the attempt is the fence", leases::attempt_is_the_fence, results, StaleSettlementChangesNothing),
        mutant("a recovered lease is settled", leases::settled_after_recovery, alternating, StaleSettlementChangesNothing),
        mutant("a settlement counts twice", leases::settled_twice, results, SettledOnce),
        mutant("a lease is recovered by its age", leases::lease_is_recovered_by_age, heartbeats, RecoveryEndsNoLiveLease),
        mutant("a heartbeat extends nothing", leases::lease_is_recovered_by_age, heartbeats, BeliefIsBacked),
        mutant("recovery ends every lease", leases::recovery_ends_all, alternating, RecoveryEndsNoLiveLease),
        mutant("a sweeper trusts a stale read", leases::sweeper_trusts_stale_read, sweepers, RecoveryEndsNoLiveLease),
        mutant("a recovery is reported twice", leases::recovery_is_reported_twice, alternating, RecoveredOnce),
        mutant("a recovery counts no attempt", leases::recovery_does_not_count, alternating, AttemptsAreCounted),
        mutant("recovery never gives up", leases::recovery_never_gives_up, locked, DeadWorkersTaskContinues),
        mutant("there is always one more attempt", leases::recovery_never_gives_up, locked, AttemptsAreBounded),
        mutant("nothing is recovered", leases::nothing_is_recovered, alternating, DeadWorkersTaskContinues),
        mutant("a dead worker's task is stuck", leases::nothing_is_recovered, alternating, EverythingCanEnd),
        mutant("a snooze uses an attempt", leases::snooze_uses_an_attempt, results, AttemptsAreCounted),
        mutant("a return uses an attempt", leases::return_uses_an_attempt, results, AttemptsAreCounted),
        mutant("a permanent failure is retried", leases::permanent_failure_is_retried, results, SettlementIsApplied),
        mutant("a snoozed task runs at once", leases::snoozed_runs_at_once, results, NothingRunsEarly),
        mutant("a finished task is leased again", leases::done_is_leased_again, alternating, TerminalStays),
        mutant("a leased task stays pending", leases::leased_stays_pending, alternating, OneLease),
        mutant("a task is due a tick early", leases::due_one_tick_early, results, NothingRunsEarly),
        mutant("a started attempt is not counted", leases::start_is_not_counted, ahead, AttemptsAreCounted),
        mutant("a prefetched task is counted", leases::prefetch_counts, ahead, AttemptsAreCounted),
        mutant("a start is ignored", leases::start_is_ignored, ahead, OnlyTheTokenSendsHeartbeats),
        mutant("a task counts while it waits for its lock", leases::waiting_counts, waiting, AttemptsAreCounted),
        mutant("anything is prefetched", leases::anything_is_prefetched, ahead, OnlyFreshTasksArePrefetched),
        mutant("starts are never counted", leases::anything_is_prefetched, ahead, StartsAreCounted),
        mutant("expired leases are not counted", leases::expiries_are_not_counted, repeated_crashes, RepeatedCrashersRunAlone),
        mutant("an expired lease has no delay", leases::expired_lease_has_no_delay, lost_leases, NothingRunsEarly),
        mutant("a lease call ends no expired lease", leases::lease_call_ends_nothing, ahead, DeadWorkersTaskContinues),
    ]
}

#[rustfmt::skip]
fn by_hand() -> Vec<Mutant> {
    use configurations::{by_hand, updates};
    vec![
        mutant("a retry by hand keeps the token", leases::retry_keeps_the_token, by_hand, TokensRise),
        mutant("a retry by hand restarts a succeeded task", leases::retry_restarts_succeeded, by_hand, RetryOnlyIdleTasks),
        mutant("a cancel ends a running task", leases::cancel_kills_at_once, by_hand, CancelWaitsForTheWorker),
        mutant("a cancelled task stays pending", leases::cancelled_stays_pending, by_hand, CancelledNeverStarts),
        mutant("a failure hides a cancellation", leases::failure_hides_cancel, by_hand, SettlementIsApplied),
        mutant("a cancelled task is retried", leases::cancelled_is_retried, by_hand, CancelledNeverStarts),
        mutant("a heartbeat hides a cancellation", leases::heartbeat_hides_cancel, by_hand, OnlyTheTokenSendsHeartbeats),
        mutant("a settlement does not raise the version", leases::version_is_not_raised, updates, VersionRises),
        mutant("an update ignores the version", leases::version_is_ignored, updates, OldVersionChangesNothing),
        mutant("an update hides the conflict", leases::conflict_is_hidden, updates, OldVersionChangesNothing),
    ]
}

#[rustfmt::skip]
fn of_the_table() -> Vec<Mutant> {
    use configurations::{reused_keys, priorities, three_workers, keys, locked, queue, queues, room, runners, results};
    vec![
        mutant("a settlement unblocks nothing", table::settlement_unblocks_nothing, locked, FreeLockIsTaken),
        mutant("a snooze unblocks nothing", table::snooze_unblocks_nothing, locked, FreeLockIsTaken),
        mutant("a cancellation unblocks nothing", table::cancel_unblocks_nothing, locked, FreeLockIsTaken),
        mutant("recovery unblocks nothing", table::recovery_unblocks_nothing, locked, FreeLockIsTaken),
        mutant("an update unblocks nothing", table::update_unblocks_nothing, queue, FreeLockIsTaken),
        mutant("a blocked task is stuck", table::settlement_unblocks_nothing, queue, EverythingCanEnd),
        mutant("a lock is ignored", table::lock_is_ignored, three_workers, OneHeadPerLock),
        mutant("a due task takes a held lock", table::due_task_takes_a_held_lock, locked, OneHeadPerLock),
        mutant("all blocked tasks are unblocked at once", table::all_blocked_are_unblocked, queue, OneHeadPerLock),
        mutant("a head counts for all queues", table::head_counts_for_all_queues, queues, FreeLockIsTaken),
        mutant("a running head is replaced", table::running_head_is_replaced, priorities, OtherTasksAreUnchanged),
        mutant("a head is never replaced", table::head_is_never_replaced, priorities, HeadComesFirst),
        mutant("a new head loses its position", table::head_loses_its_position, queue, PositionIsKept),
        mutant("a returned task loses its position", table::returned_loses_its_position, results, PositionIsKept),
        mutant("a dead runner is awaited", table::dead_runner_is_awaited, runners, RunnerIsAwaited),
        mutant("a live runner is given up", table::live_runner_is_failed, runners, RunnerIsAwaited),
        mutant("a renewal changes nothing", table::renewal_changes_nothing, runners, RunnerIsAwaited),
        mutant("a cancellation affects all tasks", table::cancel_affects_all, locked, OtherTasksAreUnchanged),
        mutant("a key is ignored", table::key_is_ignored, keys, KeyIsOneTask),
        mutant("a key is free when its task is done", table::key_is_free_when_done, keys, KeyIsOneTask),
        mutant("the queue limit is ignored", table::queue_limit_is_ignored, room, QueueLimitIsRespected),
        mutant("blocked tasks do not count against the limit", table::blocked_ignore_queue_limit, room, QueueLimitIsRespected),
        mutant("pending tasks do not count against the limit", table::pending_ignore_queue_limit, room, QueueLimitIsRespected),
        mutant("the queue limit precedes the key", table::queue_limit_precedes_key, room, KeyIsOneTask),
        mutant("a refused task takes the key", table::refused_takes_the_key, room, KeyIsOneTask),
        mutant("a reused key stays with the old task", table::key_stays_with_old_task, reused_keys, KeyIsOneTask),
        mutant("an enqueued task restarts", table::enqueued_again_restarts, keys, TerminalStays),
        mutant("an enqueued task is not stored", table::enqueued_is_not_stored, keys, NothingIsLost),
        mutant("a failed task is deleted", table::failed_is_deleted, locked, NothingIsLost),
        mutant("a snoozed task is never due", table::never_due, results, EverythingCanEnd),
        Mutant {
            name: "a promoted task is not counted",
            rules: Rules { counts: table::promoted_is_not_counted, ..CORRECT },
            config: results,
            breaks: CountsAreCorrect,
        },
    ]
}

/// Mutants of the client and of the resource: the properties also depend on these.
fn of_clients() -> Vec<Mutant> {
    use configurations::{alternating, missed_responses, waiting};
    let from_receipt = Rules { until: |_, received, ttl| received.plus(ttl), ..CORRECT };
    let late = Rules { until: |sent, received, ttl| sent.plus(ttl).max(received.plus(Ttl::MIN)), ..CORRECT };
    let unstopped = Rules { take: |held_leases, held| held_leases.push(held), ..CORRECT };
    let forgetful = Rules { knows: |_, _, _| false, ..CORRECT };
    let unconfirmed = Rules { confirms: false, ..CORRECT };
    let unreported = Rules { reports_starts: false, ..CORRECT };
    let open = Rules { admit: |_, _| true, ..CORRECT };
    let mutant = |name, rules, config, breaks| Mutant { name, rules, config, breaks };
    vec![
        mutant("a worker counts from the reply", from_receipt, alternating, OneLease),
        mutant("a worker accepts a late reply", late, alternating, LateReplyIsNoLease),
        mutant("a worker does not stop its earlier attempt", unstopped, missed_responses, OneAttemptAtATime),
        mutant(
            "a worker takes a held lease for an unconfirmed one",
            forgetful,
            missed_responses,
            BeliefIsBacked,
        ),
        mutant(
            "a worker counts an unconfirmed lease from its last request",
            unconfirmed,
            missed_responses,
            BeliefIsBacked,
        ),
        mutant("a worker starts before the store knows", unreported, waiting, StartsAreCounted),
        mutant("the resource accepts every write", open, alternating, WritesNeverGoBack),
    ]
}

type Apply = fn(&mut TaskTable, &Op, Timestamp) -> Response;

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
