//! List of cases, and the macro that defines a test for each of them.

/// Defines one test per case; the argument is the path of an `async fn() -> Lab`.
macro_rules! workflow_cases {
    ($lab:path) => {
        crate::client::workflows::workflow_cases! { @tests $lab;
            starting:
                a_start_creates_an_execution_that_can_be_found
                an_execution_has_its_caller_and_the_facts_of_its_start
                a_key_in_use_returns_the_same_execution
                after_success_or_abort_a_key_returns_the_same_execution
                after_a_failure_a_key_starts_the_next_attempt
                a_key_that_is_never_reused_returns_the_failed_execution
                a_key_that_is_always_reused_starts_after_success
                a_key_with_another_input_is_rejected_and_names_the_execution
                a_key_that_is_free_again_can_be_used_with_another_input
                a_key_stands_for_the_value_of_a_raw_input
                a_rejected_start_does_not_use_up_its_key
                another_holder_of_the_lock_blocks_a_start
                executions_queue_in_order_up_to_the_limit
                a_conflicting_start_is_skipped_on_request
                an_execution_whose_runner_is_dead_blocks_no_other
                an_execution_whose_runner_waits_keeps_its_position
                invalid_arguments_of_a_start_are_rejected
            ;
            concurrency:
                a_hundred_starts_with_one_key_create_one_execution
                of_fifty_starts_with_different_keys_one_is_accepted
                executions_of_one_workflow_never_run_together
            ;
            running:
                an_execution_holds_the_lock_under_its_own_name_until_it_is_done
                a_failed_handler_fails_the_execution_at_once
                text_that_is_not_json_reaches_a_raw_handler_unchanged
                an_execution_that_exceeds_its_run_time_is_aborted_and_the_next_one_runs
                an_aborted_execution_keeps_its_lock_until_its_handler_has_ended
                a_stopping_worker_aborts_its_execution_and_has_prefetched_none
                an_execution_keeps_its_position_while_another_holder_has_the_lock
                an_execution_that_loses_its_lock_fails
                a_crashed_worker_leaves_a_failed_execution_and_a_reusable_key
            ;
            admin:
                executions_are_listed_by_workflow_and_state
                executions_of_several_workflows_are_listed_in_pages
                an_execution_that_claims_to_retry_a_plain_task_is_listed_alone
                the_lock_of_a_workflow_names_its_holder
                a_lock_whose_execution_does_not_exist_is_cleared_by_a_start
                a_lock_whose_execution_has_finished_is_cleared_by_maintenance
                a_waiting_execution_is_aborted_at_once_and_a_finished_one_is_not
                unlocking_allows_the_next_start
                an_expired_execution_is_recovered_by_the_next_start
            ;
            external_worker:
                an_external_worker_takes_renews_and_completes_an_execution
                the_result_of_a_stale_token_is_rejected
                an_abort_is_reported_with_the_next_heartbeat
                an_execution_whose_lock_has_another_holder_is_not_taken
                an_external_worker_waits_in_the_queue_of_the_lock
            ;
        }
    };
    (@tests $lab:path; $($group:ident: $($case:ident)+;)+) => {
        $(mod $group {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::client::workflows::$group::$case($lab().await).await;
            })+
        })+
    };
}
pub(crate) use workflow_cases;
