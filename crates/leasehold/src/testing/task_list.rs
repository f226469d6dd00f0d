//! The one list of cases for tasks, and the macro that makes a test of each. What a case needs that not every engine with
//! tasks has is behind its name, as in the list for locks.

/// Makes one test per case. Give it the path, from the crate's root, of an `async fn() -> Fixture`.
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
                a_key_can_be_used_anew_when_its_task_has_failed
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
                a_lock_counts_across_queues (locks)
                blocked_tasks_go_on_in_order (locks)
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
            recovery:
                a_lease_that_ran_out_goes_back
                two_who_recover_do_it_once
                a_recovery_has_a_limit
                a_task_that_kills_its_workers_is_given_up
                what_was_to_be_stopped_is_not_run_again
                workers_are_known_by_their_signs_of_life (workers)
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
            include_str!("task_cases/recovery.rs"),
            include_str!("task_cases/by_hand.rs"),
            include_str!("task_cases/showing.rs"),
        ];
        every_case_is_in(list, &cases);
    }
}
