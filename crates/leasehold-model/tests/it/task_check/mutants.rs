//! Rules that are wrong on purpose: what each does wrong, in which world it shows, and which promise it breaks.
//!
//! Each wraps the right rules from outside and changes what goes in or what comes out, so that the rules themselves
//! know nothing of it.

use leasehold_model::{TaskTable, Timestamp, Ttl};

use super::config::Config;
use super::promises::Promise::{self, *};
use super::rules::{Answer, Op, RIGHT, Rules};
use super::{mutants_leases as leases, mutants_table as table, worlds};

pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) rules: Rules,
    pub(super) world: fn() -> Config,
    pub(super) breaks: Promise,
}

pub(super) fn all() -> Vec<Mutant> {
    let mut all = of_leases();
    all.extend(by_hand());
    all.extend(of_the_table());
    all.extend(of_the_other_side());
    all
}

#[rustfmt::skip]
fn of_leases() -> Vec<Mutant> {
    use worlds::{ahead, in_turn, locked, lost, poison, signs, sweepers, verdicts};
    vec![
        wrong("a lease keeps the token", leases::lease_keeps_the_token, in_turn, TokensRise),
        wrong("recovery keeps the token", leases::recovery_keeps_the_token, in_turn, TokensRise),
        wrong("any token settles", leases::any_token_settles, in_turn, StaleSettlementChangesNothing),
        wrong("any token gives a sign of life", leases::any_token_beats, signs, OnlyTheTokenBeats),
        wrong("the attempt is the fence", leases::attempt_is_the_fence, verdicts, StaleSettlementChangesNothing),
        wrong("what was recovered is settled", leases::settled_after_recovery, in_turn, StaleSettlementChangesNothing),
        wrong("a settlement counts twice", leases::settled_twice, verdicts, SettledOnce),
        wrong("a lease is recovered by its age", leases::lease_is_recovered_by_age, signs, RecoverySparesTheLiving),
        wrong("a sign of life extends nothing", leases::lease_is_recovered_by_age, signs, BeliefIsBacked),
        wrong("recovery ends whatever runs", leases::recovery_ends_all, in_turn, RecoverySparesTheLiving),
        wrong("a sweeper does not look again", leases::sweeper_does_not_look_again, sweepers, RecoverySparesTheLiving),
        wrong("a recovery is told twice", leases::recovery_is_told_twice, in_turn, RecoveredOnce),
        wrong("a recovery counts no attempt", leases::recovery_does_not_count, in_turn, AttemptsAreCounted),
        wrong("recovery never gives up", leases::recovery_never_gives_up, locked, DeadWorkersTaskGoesOn),
        wrong("there is always one more attempt", leases::recovery_never_gives_up, locked, AttemptsAreBounded),
        wrong("nothing is recovered", leases::nothing_is_recovered, in_turn, DeadWorkersTaskGoesOn),
        wrong("a dead worker's task is stuck", leases::nothing_is_recovered, in_turn, EverythingCanEnd),
        wrong("putting off uses an attempt", leases::snooze_uses_an_attempt, verdicts, AttemptsAreCounted),
        wrong("giving back uses an attempt", leases::return_uses_an_attempt, verdicts, AttemptsAreCounted),
        wrong("failing for good is tried again", leases::failing_for_good_is_tried_again, verdicts, VerdictIsKept),
        wrong("what is put off runs at once", leases::put_off_runs_at_once, verdicts, NothingRunsEarly),
        wrong("what is done is leased again", leases::done_is_leased_again, in_turn, TerminalStays),
        wrong("what is leased stays in line", leases::leased_stays_in_line, in_turn, OneLease),
        wrong("time comes a tick early", leases::time_comes_early, verdicts, NothingRunsEarly),
        wrong("what was started is not counted", leases::begun_is_forgotten, ahead, AttemptsAreCounted),
        wrong("what was not started is counted", leases::ahead_counts, ahead, AttemptsAreCounted),
        wrong("a start is not heard", leases::start_is_not_heard, ahead, OnlyTheTokenBeats),
        wrong("anything is fetched ahead", leases::anything_is_fetched_ahead, ahead, AheadIsForTheFresh),
        wrong("starts go uncounted for ever", leases::anything_is_fetched_ahead, ahead, StartsAreCounted),
        wrong("a lost lease leaves no trace", leases::expiries_are_forgotten, poison, CrashersRunAlone),
        wrong("a lost lease has no pause", leases::lost_lease_has_no_pause, lost, NothingRunsEarly),
        wrong("a lease does not end what has run out", leases::lease_ends_nothing, ahead, DeadWorkersTaskGoesOn),
    ]
}

#[rustfmt::skip]
fn by_hand() -> Vec<Mutant> {
    use worlds::{by_hand, updates};
    vec![
        wrong("a retry by hand keeps the token", leases::retry_keeps_the_token, by_hand, TokensRise),
        wrong("a retry by hand begins what is done", leases::retry_begins_what_is_done, by_hand, RetryIsForWhatRests),
        wrong("a cancel ends a running task", leases::cancel_kills_at_once, by_hand, CancelWaitsForTheWorker),
        wrong("a cancelled task waits in line", leases::cancelled_waits_in_line, by_hand, CancelledNeverStarts),
        wrong("a cancelled task is tried again", leases::cancelled_is_tried_again, by_hand, CancelledNeverStarts),
        wrong("a sign of life does not tell of a cancel", leases::beat_does_not_tell, by_hand, OnlyTheTokenBeats),
        wrong("a settlement does not raise the version", leases::version_is_not_raised, updates, VersionRises),
        wrong("an update ignores the version", leases::version_is_ignored, updates, OldVersionChangesNothing),
        wrong("an update hides the conflict", leases::conflict_is_hidden, updates, OldVersionChangesNothing),
    ]
}

#[rustfmt::skip]
fn of_the_table() -> Vec<Mutant> {
    use worlds::{anew, better, crowd, keys, locked, queue, queues, room, runners, verdicts};
    vec![
        wrong("settling frees nobody", table::settling_frees_nobody, locked, FreeLockIsTaken),
        wrong("putting off frees nobody", table::snoozing_frees_nobody, locked, FreeLockIsTaken),
        wrong("cancelling frees nobody", table::cancelling_frees_nobody, locked, FreeLockIsTaken),
        wrong("recovery frees nobody", table::recovery_frees_nobody, locked, FreeLockIsTaken),
        wrong("a change by hand frees nobody", table::putting_off_frees_nobody, queue, FreeLockIsTaken),
        wrong("who waits for a lock is stuck", table::settling_frees_nobody, queue, EverythingCanEnd),
        wrong("a lock is forgotten", table::lock_is_forgotten, crowd, OneHeadPerLock),
        wrong("what is due takes a taken lock", table::due_takes_a_taken_lock, locked, OneHeadPerLock),
        wrong("all that wait go at once", table::all_waiting_go_at_once, queue, OneHeadPerLock),
        wrong("a head counts for all queues", table::head_counts_for_all_queues, queues, FreeLockIsTaken),
        wrong("a running head is replaced", table::running_head_is_replaced, better, OthersAreSpared),
        wrong("a head is never replaced", table::head_is_never_replaced, better, HeadComesFirst),
        wrong("who becomes the head loses its place", table::head_loses_its_place, queue, PlaceIsKept),
        wrong("what is given back loses its place", table::returned_loses_its_place, verdicts, PlaceIsKept),
        wrong("a runner that is gone is waited for", table::gone_runner_is_awaited, runners, RunnerIsAwaited),
        wrong("a runner that waits is given up", table::live_runner_is_given_up, runners, RunnerIsAwaited),
        wrong("a renewal changes nothing", table::renewal_changes_nothing, runners, RunnerIsAwaited),
        wrong("a cancel takes them all", table::cancel_takes_them_all, locked, OthersAreSpared),
        wrong("a key counts for nothing", table::key_counts_for_nothing, keys, KeyIsOneTask),
        wrong("a key is free when its task is done", table::key_is_free_when_done, keys, KeyIsOneTask),
        wrong("room is forgotten", table::room_is_forgotten, room, RoomIsKept),
        wrong("room is not for those that wait", table::room_is_for_the_head, room, RoomIsKept),
        wrong("room is free until somebody runs", table::room_is_free_until_it_runs, room, RoomIsKept),
        wrong("room counts before the key", table::room_counts_before_the_key, room, KeyIsOneTask),
        wrong("a refused task takes the key", table::refused_takes_the_key, room, KeyIsOneTask),
        wrong("a key used anew stays with the old", table::key_stays_with_the_old, anew, KeyIsOneTask),
        wrong("what is added again begins again", table::added_again_is_begun_again, keys, TerminalStays),
        wrong("what is added is not written", table::added_is_not_written, keys, NothingIsLost),
        wrong("what is given up is forgotten", table::given_up_is_forgotten, locked, NothingIsLost),
        wrong("what is put off never comes", table::time_never_comes, verdicts, EverythingCanEnd),
        Mutant {
            name: "what is promoted is not counted",
            rules: Rules { counts: table::promoted_is_not_counted, ..RIGHT },
            world: verdicts,
            breaks: CountsAreTrue,
        },
    ]
}

/// Wrong clients and a wrong resource: the promises hold only with these right too.
fn of_the_other_side() -> Vec<Mutant> {
    use worlds::{in_turn, strays};
    let from_receipt = Rules { until: |_, received, ttl| received.plus(ttl), ..RIGHT };
    let late = Rules { until: |sent, received, ttl| sent.plus(ttl).max(received.plus(Ttl::MIN)), ..RIGHT };
    let unstopped = Rules { take: |hands, hand| hands.push(hand), ..RIGHT };
    let forgetful = Rules { knows: |_, _, _| false, ..RIGHT };
    let unconfirmed = Rules { confirms: false, ..RIGHT };
    let open = Rules { admit: |_, _| true, ..RIGHT };
    let mutant = |name, rules, world, breaks| Mutant { name, rules, world, breaks };
    vec![
        mutant("a worker counts from the reply", from_receipt, in_turn, OneLease),
        mutant("a worker takes a late reply for a lease", late, in_turn, LateReplyIsNoLease),
        mutant("a worker does not stop its earlier attempt", unstopped, strays, OneAttemptAtATime),
        mutant("a worker takes what it has in hand for a stray", forgetful, strays, BeliefIsBacked),
        mutant("a worker counts a stray from its last asking", unconfirmed, strays, BeliefIsBacked),
        mutant("the resource lets everything in", open, in_turn, WritesNeverGoBack),
    ]
}

type Apply = fn(&mut TaskTable, &Op, Timestamp) -> Answer;

fn wrong(name: &'static str, apply: Apply, world: fn() -> Config, breaks: Promise) -> Mutant {
    let rules = Rules { apply, ..RIGHT };
    Mutant { name, rules, world, breaks }
}
