//! Tests that the rules have every property in every configuration.

use super::configurations;
use super::rules::CORRECT;
use super::system::System;
use crate::shared::{explore, passes};

passes! {
    a_task_changes_workers_and_old_writes_are_refused: alternating,
    a_heartbeat_extends_a_lease_and_a_crash_ends_it: heartbeats,
    every_settlement_counts_once: verdicts,
    people_may_change_tasks_at_any_time: by_hand,
    an_update_with_an_old_version_changes_nothing: updates,
    two_recoveries_with_stale_reads_end_no_live_lease: sweepers,
    of_two_tasks_with_one_lock_one_runs_and_none_is_stuck: locked,
    a_queue_for_one_lock_is_never_stuck: queue,
    a_lock_has_a_head_in_each_queue: queues,
    a_higher_priority_goes_first_unless_the_head_runs: priorities,
    a_task_with_a_dead_runner_blocks_no_other: runners,
    one_key_is_one_task: keys,
    a_key_is_reused_only_when_allowed: reused_keys,
    a_task_is_added_only_within_the_queue_limit_and_a_refused_one_takes_no_key: room,
    a_worker_that_missed_a_response_recovers_its_task_and_makes_one_attempt: missed_responses,
    a_prefetched_task_counts_once_started: ahead,
    a_task_that_waits_for_its_lock_counts_once_its_start_is_reported: waiting,
    a_task_that_lost_its_worker_twice_waits_for_the_default_delay: lost_leases,
    a_task_that_lost_its_workers_is_delayed_and_runs_alone: repeated_crashes,
    three_workers_have_every_property_within_a_bound: three_workers,
}
