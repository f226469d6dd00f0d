//! List of all cases for tasks, and the macro that generates a test for each. The capabilities that
//! a case needs follow its name in parentheses, as in the list for locks.

/// Generates one test per case. The argument is the path, from the crate's root, of an `async fn()
/// -> Fixture`.
#[macro_export]
macro_rules! task_conformance {
    ($fresh:path) => {
        $crate::conformance_tests! { $fresh, task_cases;
            lease:
                a_leased_task_is_running_and_names_its_worker
                a_task_goes_to_one_worker
                of_sixteen_concurrent_workers_each_task_goes_to_one
                a_task_added_during_a_lease_is_not_skipped
                tasks_are_leased_in_order_of_arrival
                a_batch_keeps_its_order
                a_higher_priority_is_leased_first
                a_long_waiting_task_is_leased_before_a_later_higher_priority
                a_worker_gets_tasks_of_its_queues_only
                tasks_of_several_queues_are_leased_in_one_order
                every_lease_raises_the_token
                a_task_keeps_its_timeout
                a_lease_returns_at_most_a_mebibyte_of_payloads (large_payloads)
                an_enqueue_wakes_a_waiting_worker (pushes)
            ;
            settle:
                a_result_is_stored
                a_finished_task_is_not_leased_again
                a_repeated_settlement_is_accepted_once
                an_old_token_settles_nothing
                a_late_settlement_counts_while_the_lease_has_not_been_ended
                each_task_of_a_batch_is_settled_separately
                a_failed_attempt_is_retried_after_a_delay
                a_failed_attempt_may_choose_its_delay
                a_permanent_failure_leaves_attempts_unused
                a_failure_after_a_request_to_stop_aborts_the_task
                snoozing_and_returning_use_no_attempt
                a_returned_task_keeps_its_position
                deferring_uses_no_attempt_and_records_no_event
                a_heartbeat_extends_the_lease_and_changes_nothing_else
                heartbeats_are_answered_per_task
                progress_is_sent_with_a_heartbeat
            ;
            keys:
                a_repeated_task_is_added_once
                the_same_key_means_the_same_task
                the_same_key_twice_in_a_batch_is_one_task
                a_key_with_another_payload_is_refused
                a_key_is_unique_within_its_queue
                a_key_compares_the_canonical_payload
                a_key_can_be_reused_when_its_task_has_failed
                a_free_key_can_be_used_with_another_payload
                a_purged_task_frees_its_key (forgets)
            ;
            timing:
                a_task_does_not_run_before_it_is_due
                a_time_in_the_past_is_now
                overdue_tasks_run_in_order_of_their_due_time
                a_future_task_of_high_priority_delays_no_other
                an_idle_worker_learns_when_the_next_task_is_due
                a_recovery_promotes_due_tasks (promotes)
                a_returned_task_is_leased_at_another_priority_after_a_recovery (promotes)
            ;
            locked:
                of_tasks_with_one_lock_one_runs (locks)
                a_pending_task_of_one_queue_blocks_none_of_another (locks)
                blocked_tasks_become_pending_in_order (locks)
                blocked_tasks_keep_their_position (locks)
                a_better_task_replaces_a_lock_owner_that_does_not_run (locks)
                a_due_task_replaces_a_lock_owner_that_it_precedes (locks)
                a_changed_priority_changes_the_lock_owner (locks)
                a_better_task_precedes_a_returned_lock_owner (locks)
                a_task_that_waits_for_a_retry_does_not_own_its_lock (locks)
                a_returned_task_keeps_its_lock (locks)
                the_task_of_a_crashed_worker_frees_its_lock (locks)
                cancelling_frees_the_lock (locks)
                a_scheduled_task_takes_its_lock_only_when_it_is_due (locks)
                a_hundred_tasks_with_one_lock_delay_no_other (locks)
            ;
            lock_queue_limit:
                with_a_limit_of_zero_only_the_first_task_is_added (locks)
                a_lock_queue_accepts_up_to_its_limit (locks)
                the_limit_counts_tasks_of_the_same_batch (locks)
                a_scheduled_task_does_not_count_towards_the_limit (locks)
                the_key_is_checked_before_the_limit (locks)
                a_refused_task_takes_no_key (locks)
                a_refused_task_does_not_move_the_key (locks)
                of_sixteen_concurrent_tasks_one_is_within_the_limit (locks)
                a_key_may_cover_a_part_of_the_payload
                the_reason_of_a_cancellation_is_stored
            ;
            runner:
                a_task_with_a_dead_runner_fails (locks)
                a_runner_that_still_waits_keeps_its_task (locks)
                a_dead_runner_blocks_no_other_task (locks)
                the_deadline_of_a_runner_counts_only_while_its_task_waits (locks)
                a_scheduled_task_with_a_dead_runner_never_becomes_ready (locks)
                leases_and_runners_share_the_limit_of_a_recovery (locks)
            ;
            recovery:
                a_task_with_an_expired_lease_becomes_pending
                two_concurrent_recoveries_recover_each_task_once
                a_recovery_has_a_limit
                a_task_that_kills_its_workers_fails
                a_task_with_a_cancel_request_is_not_run_again
                workers_are_listed_by_their_heartbeats (workers)
                a_worker_without_a_heartbeat_is_not_listed (workers)
            ;
            begun:
                a_task_that_starts_at_once_has_begun
                a_task_that_was_never_started_uses_no_attempt (ahead)
                a_crash_fails_no_task_that_was_never_started (ahead)
                a_task_that_waits_for_its_lock_uses_no_attempt (locks)
                a_task_that_runs_alone_starts_once_it_has_its_lock (locks)
                a_heartbeat_reports_that_a_task_was_started (ahead)
                a_settled_task_counts_as_started (ahead)
                only_fresh_tasks_with_attempts_left_are_prefetched (ahead)
                a_lease_call_takes_expired_tasks
                a_lease_call_takes_expired_tasks_that_never_started_at_once (ahead)
                after_a_second_lost_lease_the_usual_pause_applies
                a_heartbeat_resets_the_count_of_lost_leases
                a_task_that_lost_its_workers_runs_alone
                a_task_that_runs_alone_is_not_started_beside_others (ahead)
                a_poison_task_does_not_fail_its_neighbours
            ;
            admin:
                a_pending_task_is_cancelled_at_once
                a_running_task_is_cancelled_by_its_worker
                a_failed_task_can_be_retried
                a_waiting_task_can_be_run_now
                an_update_compares_the_version
                an_update_changes_priority_and_due_time
                an_invalid_update_is_refused
                the_limit_of_attempts_cannot_fall_below_those_made (edits)
                nothing_is_leased_from_a_paused_queue (pauses)
            ;
            queries:
                an_unknown_task_is_not_found
                tasks_are_listed_newest_first_in_pages
                a_list_without_payloads_omits_them
                tasks_are_listed_by_state_queue_and_lock (locks)
                a_queue_is_returned_by_its_name
                counts_follow_every_change (locks)
                finished_tasks_can_be_archived_and_purged (forgets)
                tasks_that_finished_together_are_archived_and_purged_by_id (forgets)
                a_stored_task_is_returned_unchanged (locks)
            ;
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::testing::list::every_case_is_in;

    /// A case that is written but not listed would never run.
    #[test]
    fn every_case_is_listed() {
        every_case_is_in(include_str!("task_list.rs"), "task_cases");
    }
}
