//! Runs the checks, and shows that each of them finds the mutants of its part.

use leasehold_interleavings::{check, is_found};

/// Defines a test for each check, and one for each mutant that a check finds.
macro_rules! checks {
    ($($part:ident in $($segment:ident)::+: $($check:ident $([$($mutant:ident),*])?),*;)*) => {$(
        mod $part {
            use $($segment)::+ as part;

            $(
                #[test]
                fn $check() {
                    crate::check(part::checks::$check);
                }
            )*

            mod finds {
                $($($(
                    #[test]
                    fn $mutant() {
                        assert!(crate::is_found(super::part::$mutant::checks::$check), "the mutant is not found");
                    }
                )*)?)*
            }
        }
    )*};
}

checks! {
    in_order in leasehold_interleavings::store::support::in_order:
        calls_begin_one_at_a_time_in_order_and_pass_the_state_on [lost_turn, overtaking],
        calls_for_other_keys_are_independent_and_leave_nothing;
    batch_queue in leasehold_interleavings::store::support::batch_queue:
        no_call_is_lost_or_executed_twice_with_one_worker [lost_worker],
        no_call_is_lost_or_executed_twice_with_two_workers;
    waiters in leasehold_interleavings::store::support::wake::waiters:
        a_lease_that_is_granted_in_this_process_reaches_its_waiter [early_notify],
        no_hint_is_lost_between_the_query_and_the_wait,
        a_lease_that_is_older_than_the_last_request_is_not_delivered [stale_grant];
    queues in leasehold_interleavings::store::support::wake::queues:
        every_task_is_taken_although_workers_leave [kept_notification];
    held_leases in leasehold_interleavings::client::tasks::held_leases:
        a_query_never_starts_a_task_that_is_held_or_was_done [unlocked_look],
        a_lost_lease_is_never_shown_as_held;
    slots in leasehold_interleavings::client::tasks::slots:
        no_more_attempts_run_than_there_are_slots_and_none_is_lost;
    batcher in leasehold_interleavings::store::redis::connection::batcher:
        every_call_is_answered_or_in_doubt_or_was_never_sent [unguarded_drop];
}
