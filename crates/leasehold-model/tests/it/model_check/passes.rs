//! Tests that the rules have every property in every configuration.

use super::configurations;
use super::rules::CORRECT;
use super::system::System;
use crate::shared::{explore, passes};

passes! {
    two_workers_never_both_believe_to_hold: everything,
    a_lock_changes_holders_and_old_writes_are_refused: alternating,
    a_shorter_renewal_leaves_no_belief_behind: shorter_renewals,
    a_lost_reply_and_a_retry_create_one_lease: retries,
    a_request_delivered_twice_is_harmless: duplicates,
    a_silent_waiter_blocks_no_other: queue,
    the_last_request_acquires_the_lock_or_leaves_the_queue: stops_waiting,
    three_waiters_are_granted_in_order: three,
    two_sweepers_with_stale_reads_end_no_live_lease: sweepers,
    readers_and_a_writer_never_hold_together: shared,
    priority_goes_first_and_waiting_time_catches_up: priority,
    a_counted_lock_has_no_more_holders_than_any_of_them_accepts: counted,
    a_deleted_and_recreated_lock_has_every_property: deletion,
    tokens_rise_across_a_deletion_and_a_clock_set_back: clock_set_back,
    a_steal_takes_only_stale_leases: stealing,
    a_retained_lease_keeps_others_out_for_its_time: retained,
    three_workers_have_every_property_within_a_bound: three_workers,
}
