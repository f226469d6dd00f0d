//! The one list of cases, and the macro that makes a test of each.

/// Makes one test per case. Give it the path of an `async fn() -> Lab`.
macro_rules! workflow_cases {
    ($lab:path) => {
        crate::client::workflows::workflow_cases! { @tests $lab;
            starting:
                a_start_makes_an_execution_that_can_be_found
                an_execution_knows_who_started_it_and_why
                the_same_key_while_it_waits_or_runs_is_the_same_execution
                after_success_and_after_an_abort_the_key_means_the_same_execution
                after_a_failure_the_key_starts_the_next_attempt
                a_key_that_is_never_used_anew_means_the_failed_one
                a_key_that_is_always_used_anew_starts_after_success
                a_key_with_another_input_is_refused_and_names_the_execution
                a_key_that_is_free_again_can_be_used_with_another_input
                the_key_stands_for_what_a_raw_input_means
                another_execution_is_in_the_way_and_the_key_is_not_burnt
                a_stranger_with_the_lock_is_in_the_way
                executions_queue_in_order_and_no_more_than_may
                a_start_that_may_be_skipped_is_skipped
                an_execution_whose_runner_is_gone_is_in_nobodys_way
                an_execution_whose_runner_waits_keeps_its_turn
                what_is_wrong_with_a_value_is_told
            ;
            racing:
                of_a_hundred_starts_with_one_key_one_execution_comes
                of_fifty_starts_with_keys_of_their_own_one_is_accepted
                executions_of_one_workflow_never_run_together
            ;
            running:
                an_execution_holds_the_lock_under_its_own_name_until_it_is_done
                a_failed_handler_fails_the_execution_at_once
                a_text_that_is_no_json_reaches_a_raw_handler_as_it_came
                what_runs_too_long_is_aborted_and_the_next_one_goes
                an_aborted_execution_keeps_its_lock_until_its_handler_is_gone
                a_worker_that_ends_aborts_what_it_runs_and_has_taken_nothing_ahead
                an_execution_waits_in_its_place_for_a_stranger_with_the_lock
                who_loses_the_lock_has_failed
                a_worker_that_vanishes_leaves_a_failed_execution_and_a_key_that_can_be_used
            ;
            by_hand:
                executions_are_listed_by_workflow_and_state
                the_lock_of_a_workflow_tells_who_has_it
                a_lock_whose_execution_does_not_exist_is_cleared_on_sight
                a_lock_whose_execution_is_over_is_cleared_by_the_sweeper
                what_waits_is_stopped_at_once_and_what_is_over_is_not
                unlocking_lets_the_next_start_go
                an_expired_execution_is_recovered_by_the_next_start
            ;
            external:
                somebody_else_takes_keeps_and_completes_an_execution
                a_zombies_result_is_refused
                an_abort_is_told_with_the_next_sign_of_life
                nobody_takes_an_execution_whose_lock_a_stranger_has
                a_taker_waits_in_the_queue_of_the_lock
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
