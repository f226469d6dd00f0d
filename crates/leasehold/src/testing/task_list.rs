//! List of all cases for tasks, and the macro that generates a test for each. The capabilities that
//! a case needs follow its name in parentheses, as in the list for locks.

/// Generates one test per case. The argument is the path, from the crate's root, of an `async fn()
/// -> Fixture`.
#[macro_export]
macro_rules! task_conformance {
    ($fresh:path) => {
        $crate::task_conformance! { @tests $fresh;
            leasing:
                a_leased_task_is_running_and_knows_by_whom
                a_task_goes_to_one_worker
                of_sixteen_workers_at_once_each_task_goes_to_one
                what_comes_at_the_moment_of_a_lease_is_not_passed_over
                tasks_are_leased_in_the_order_they_came
                a_batch_keeps_its_order
                a_higher_priority_is_leased_first
                one_that_waits_long_is_leased_before_a_higher_priority_that_came_late
                a_worker_gets_only_from_its_queues
                several_queues_are_one_line
                every_lease_raises_the_token
                an_answer_is_full_after_a_mebibyte_of_payloads
                an_enqueue_wakes_a_worker_that_waits
            ;
            settling:
                a_result_is_kept
                what_is_done_is_not_leased_again
                a_settlement_that_is_sent_again_is_the_same
                an_old_token_settles_nothing
                a_late_settlement_counts_if_nobody_has_ended_the_lease
                each_of_a_batch_is_settled_by_itself
                a_failed_attempt_is_tried_again_after_a_pause
                a_failed_attempt_may_choose_its_pause
                failing_for_good_leaves_attempts_unused
                snoozing_and_returning_use_no_attempt
                a_task_that_is_given_back_keeps_its_place
                deferring_uses_no_attempt_and_is_no_event
                a_sign_of_life_extends_the_lease_and_nothing_else
                signs_of_life_are_answered_one_by_one
                progress_travels_with_a_sign_of_life
            ;
            keys:
                a_task_that_is_sent_again_is_added_once
                the_same_key_means_the_same_task
                the_same_key_twice_in_a_batch_is_one_task
                a_key_with_another_payload_is_refused
                a_key_counts_within_its_queue
                a_key_stands_for_what_a_payload_means
                a_key_of_an_earlier_version_is_known
                a_key_can_be_used_anew_when_its_task_has_failed
                a_key_that_is_free_can_be_used_for_something_else
                a_forgotten_task_leaves_its_key (forgets)
            ;
            timing:
                a_task_does_not_run_before_its_time
                a_time_in_the_past_is_now
                what_is_overdue_runs_in_the_order_of_its_time
                a_future_task_of_high_priority_is_in_nobodys_way
                an_idle_worker_learns_when_the_next_task_is_due
                a_recovery_puts_in_line_what_is_due (promotes)
            ;
            locked:
                of_tasks_with_one_lock_one_runs (locks)
                a_pending_task_of_one_queue_blocks_none_of_another (locks)
                blocked_tasks_go_on_in_order (locks)
                blocked_tasks_keep_their_place (locks)
                a_better_task_takes_the_place_of_a_head_that_does_not_run (locks)
                what_is_due_takes_the_place_of_a_head_that_it_comes_before (locks)
                a_changed_priority_changes_the_head (locks)
                a_better_task_goes_before_a_head_that_is_given_back (locks)
                a_task_that_waits_for_its_next_attempt_lets_others_have_its_lock (locks)
                a_task_that_is_given_back_keeps_its_turn (locks)
                a_crashed_worker_does_not_keep_the_lock (locks)
                cancelling_frees_the_lock (locks)
                a_scheduled_task_takes_its_lock_only_when_it_is_due (locks)
                a_hundred_with_one_lock_are_in_nobodys_way (locks)
            ;
            room:
                where_nobody_may_be_in_the_way_one_is_added (locks)
                a_line_has_so_many_places (locks)
                room_is_counted_within_a_batch (locks)
                what_waits_for_its_time_takes_no_room (locks)
                a_key_counts_before_room (locks)
                a_refused_task_takes_no_key (locks)
                a_refused_task_leaves_the_key_where_it_is (locks)
                of_sixteen_at_once_one_finds_room (locks)
                a_key_may_stand_for_a_part_of_the_payload
                why_it_was_stopped_is_kept
            ;
            runner:
                a_task_whose_runner_is_gone_has_failed (locks)
                a_runner_that_still_waits_keeps_its_task (locks)
                a_runner_that_is_gone_is_in_nobodys_way (locks)
                the_deadline_of_a_runner_counts_only_while_its_task_waits (locks)
                a_scheduled_task_whose_runner_is_gone_never_becomes_ready (locks)
                leases_and_runners_share_the_limit_of_a_recovery (locks)
            ;
            recovery:
                a_lease_that_ran_out_goes_back
                two_who_recover_do_it_once
                a_recovery_has_a_limit
                a_task_that_kills_its_workers_is_given_up
                what_was_to_be_stopped_is_not_run_again
                workers_are_known_by_their_signs_of_life (workers)
                a_worker_that_says_nothing_of_itself_is_not_listed (workers)
            ;
            begun:
                a_task_that_starts_at_once_has_begun
                what_was_never_started_uses_no_attempt (ahead)
                a_crash_fails_no_task_that_was_never_started (ahead)
                a_heartbeat_tells_that_a_task_was_started (ahead)
                what_is_settled_was_started (ahead)
                only_fresh_tasks_with_attempts_left_are_fetched_ahead (ahead)
                a_lease_finds_what_has_run_out
                a_lease_finds_at_once_what_was_never_started (ahead)
                after_a_second_lost_lease_the_usual_pause_applies
                a_word_of_the_worker_ends_the_row_of_lost_leases
                what_lost_its_workers_runs_alone
                what_runs_alone_is_not_started_beside_others (ahead)
                a_poison_task_does_not_fail_its_neighbours
            ;
            by_hand:
                a_pending_task_is_stopped_at_once
                a_running_task_is_stopped_by_its_worker
                a_failed_task_can_be_tried_again
                a_waiting_task_can_be_run_now
                an_update_compares_the_version
                an_update_moves_a_task_in_line_and_in_time
                an_update_that_makes_no_sense_is_refused
                attempts_that_were_made_cannot_be_taken_back (edits)
                nothing_is_leased_from_a_paused_queue (pauses)
            ;
            showing:
                an_unknown_task_is_not_there
                tasks_are_listed_newest_first_in_pages
                a_brief_list_leaves_payloads_out
                tasks_are_listed_by_what_they_are (locks)
                a_queue_is_found_by_its_name
                counts_follow_every_step (locks)
                finished_tasks_can_be_put_away_and_forgotten (forgets)
                what_was_stored_as_a_task_comes_back_as_it_was (locks)
            ;
        }
    };
    (@tests $fresh:path; $($group:ident: $($case:ident $(($($need:ident)+))?)+;)+) => {
        $(mod $group {
            $(#[tokio::test]
            async fn $case() {
                let fixture = $fresh().await;
                if fixture.can(stringify!($case), &[$($(stringify!($need)),+)?]) {
                    $crate::testing::task_cases::$group::$case(fixture).await;
                }
            })+
        })+
    };
}

#[cfg(test)]
mod tests {
    use crate::testing::list::every_case_is_in;

    /// A case that is written but not listed would never run.
    #[test]
    fn every_case_is_listed() {
        let list = include_str!("task_list.rs");
        let cases = [
            include_str!("task_cases/leasing.rs"),
            include_str!("task_cases/settling.rs"),
            include_str!("task_cases/keys.rs"),
            include_str!("task_cases/timing.rs"),
            include_str!("task_cases/locked.rs"),
            include_str!("task_cases/room.rs"),
            include_str!("task_cases/runner.rs"),
            include_str!("task_cases/recovery.rs"),
            include_str!("task_cases/begun.rs"),
            include_str!("task_cases/by_hand.rs"),
            include_str!("task_cases/showing.rs"),
        ];
        every_case_is_in(list, &cases);
    }
}
