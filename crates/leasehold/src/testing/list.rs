//! List of all cases for locks, and the macro that generates a test for each. The capabilities that
//! a case needs follow its name in parentheses, named as in
//! [`Capabilities`](crate::store::Capabilities); the test of an engine without them prints that the
//! case does not apply.

/// Generates one test per case. The argument is the path, from the crate's root, of an
/// `async fn() -> Fixture`.
///
/// ```text
/// mod memory {
///     async fn fresh() -> leasehold::testing::Fixture { … }
///     leasehold::lock_conformance!(crate::memory::fresh);
/// }
/// ```
#[macro_export]
macro_rules! lock_conformance {
    ($fresh:path) => {
        $crate::lock_conformance! { @tests $fresh;
            exclusive:
                a_free_lock_is_granted
                a_held_lock_is_refused_and_says_who_has_it
                the_same_request_again_gives_the_same_lease
                a_lease_counts_up_to_the_very_moment_it_ends (exact)
                an_ended_lease_is_taken_over_and_that_is_told
                a_takeover_names_the_lease_before_it (takeovers)
                tokens_rise_across_release_expiry_and_force
                a_token_is_never_behind_the_clock
                a_renewal_counts_from_now
                a_renewal_may_change_the_ttl
                only_the_exact_lease_renews
                an_ended_lease_cannot_be_renewed
                only_the_exact_lease_releases
                a_second_release_finds_nothing
                what_was_released_elsewhere_is_not_released_again
                a_release_can_keep_others_out_for_a_while
                of_sixteen_at_once_one_wins
                locks_of_other_names_do_not_care
            ;
            shared:
                readers_share (shares)
                a_writer_waits_for_every_reader (shares)
                readers_behind_a_waiting_writer_wait_too (shares)
                each_reader_ends_by_itself (shares)
                a_reader_does_not_get_past_a_writer (shares)
                readers_at_the_front_are_served_together (shares)
            ;
            counted:
                so_many_and_no_more (shares)
                the_smallest_idea_of_how_many_counts (shares)
                a_freed_slot_goes_to_the_queue (shares)
            ;
            queue:
                a_release_hands_over_to_the_first_ticket (queues)
                a_handed_over_lease_is_confirmed_by_asking_again (queues)
                tickets_are_served_in_order_of_arrival (queues)
                a_higher_priority_goes_first (queues)
                waiting_long_beats_a_higher_priority_that_came_late (queues)
                nobody_overtakes_a_ticket (queues)
                asking_again_keeps_the_place (queues)
                a_ticket_without_a_sign_of_life_ends (queues)
                a_dead_waiter_delays_the_next_by_its_ticket_only (queues)
                leaving_gives_up_the_place (queues)
                leaving_gives_back_a_grant_that_was_never_seen (queues)
                a_writer_that_leaves_lets_the_readers_behind_it_in (queues)
                the_last_asking_leaves_the_queue (queues)
                a_queue_has_an_end (queues quick)
                a_release_wakes_the_one_that_is_served (queues)
                a_lease_is_never_delivered_to_a_waiter_for_another_lock (queues)
                a_peek_shows_the_lease_that_a_ticket_has_become (queues)
                a_peek_says_that_something_has_ended (queues)
                a_refreshed_ticket_makes_nobody_ask_again (queues)
                a_long_queue_is_refreshed_and_served_in_order (queues)
            ;
            admin:
                a_holder_learns_that_it_was_asked
                asking_for_a_free_lock_finds_nobody
                a_force_release_compares_the_token
                a_force_release_makes_the_token_old
                a_force_release_hands_over (queues)
                a_lease_without_a_sign_of_life_can_be_stolen
                a_thief_stands_in_line_too (queues)
                a_thief_takes_only_what_is_in_its_way (shares)
                a_lease_that_is_kept_cannot_be_stolen
            ;
            sweep:
                a_sweep_ends_what_has_ended_and_serves_the_queue (queues)
                a_sweep_leaves_the_living_alone (queues)
                two_sweepers_do_no_harm
                the_dead_are_swept_before_their_time (queues)
                a_restart_frees_what_that_boot_held (queues)
                a_restart_gives_the_others_their_whole_time (exact)
            ;
            forget:
                an_idle_lock_is_forgotten (forgets_locks)
                a_forgotten_lock_is_free_and_its_history_stays (forgets_locks)
                a_lock_that_is_held_waited_for_or_kept_is_not_forgotten (forgets_locks)
                a_lock_that_was_granted_lately_is_not_forgotten (forgets_locks)
                an_ended_lease_is_swept_before_its_lock_is_forgotten (forgets_locks)
                tokens_rise_over_forgetting_and_a_clock_that_was_set_back (forgets_locks)
                forgetting_and_asking_at_once_lose_nothing (forgets_locks)
                one_pass_forgets_no_more_than_it_may (forgets_locks)
            ;
            listing:
                an_unknown_lock_has_no_record
                what_was_stored_comes_back_as_it_was (shares)
                locks_are_listed_by_name_in_pages
                locks_are_listed_by_prefix
                locks_are_listed_by_state (queues)
                odd_names_are_only_names
            ;
            history:
                every_change_is_told_once_and_in_order (queues)
                what_changes_nothing_tells_nothing
                renewals_are_counted_not_listed
                a_renewal_is_listed_if_its_caller_asks_for_that (queues renewals)
                history_is_read_in_pages_both_ways
                replaying_the_history_gives_the_lock (shares)
            ;
            several:
                the_first_is_kept_while_the_second_is_waited_for
                losing_the_first_while_waiting_begins_again
                losing_one_gives_the_others_back_with_the_guard
            ;
            notices:
                a_holder_learns_at_once_that_its_lock_was_taken
                a_holder_learns_what_was_done_before_it_subscribed
                a_holder_learns_at_once_that_it_is_asked_to_stop
                a_holder_learns_at_once_that_its_lease_was_released_elsewhere
                a_worker_learns_at_once_that_its_task_was_cancelled
            ;
        }
    };
    (@tests $fresh:path; $($group:ident: $($case:ident $(($($need:ident)+))?)+;)+) => {
        $(mod $group {
            $(#[tokio::test]
            async fn $case() {
                let fixture = $fresh().await;
                if fixture.can(stringify!($case), &[$($(stringify!($need)),+)?]) {
                    $crate::testing::cases::$group::$case(fixture).await;
                }
            })+
        })+
    };
}

/// Panics if one of the cases in these files is not in the list.
#[cfg(test)]
pub(super) fn every_case_is_in(list: &str, files: &[&str]) {
    let lines = files.iter().flat_map(|text| text.lines());
    let names = lines.filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 50, "only {} cases were found", names.len());
    for name in names {
        let is_listed = |end| list.contains(&format!("                {name}{end}"));
        assert!(is_listed("\n") || is_listed(" ("), "{name} is not in the list");
    }
}

#[cfg(test)]
mod tests {
    use super::every_case_is_in;

    /// A case that is written but not listed would never run.
    #[test]
    fn every_case_is_listed() {
        let list = include_str!("list.rs");
        let cases = [
            include_str!("cases/admin.rs"),
            include_str!("cases/counted.rs"),
            include_str!("cases/exclusive.rs"),
            include_str!("cases/forget.rs"),
            include_str!("cases/history.rs"),
            include_str!("cases/listing.rs"),
            include_str!("cases/notices.rs"),
            include_str!("cases/queue.rs"),
            include_str!("cases/several.rs"),
            include_str!("cases/shared.rs"),
            include_str!("cases/sweep.rs"),
        ];
        every_case_is_in(list, &cases);
    }
}
