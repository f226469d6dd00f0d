//! Tests that the rules have every property in every configuration.

use std::time::Instant;

use stateright::{Checker, Model};

use super::config::Config;
use super::configurations;
use super::rules::CORRECT;
use super::system::System;

#[test]
fn a_task_changes_workers_and_old_writes_are_refused() {
    explore(configurations::alternating());
}

#[test]
fn a_heartbeat_extends_a_lease_and_a_crash_ends_it() {
    explore(configurations::heartbeats());
}

#[test]
fn every_settlement_counts_once() {
    explore(configurations::verdicts());
}

#[test]
fn people_may_change_tasks_at_any_time() {
    explore(configurations::by_hand());
}

#[test]
fn an_update_with_an_old_version_changes_nothing() {
    explore(configurations::updates());
}

#[test]
fn two_recoveries_with_stale_reads_end_no_live_lease() {
    explore(configurations::sweepers());
}

#[test]
fn of_two_tasks_with_one_lock_one_runs_and_none_is_stuck() {
    explore(configurations::locked());
}

#[test]
fn a_queue_for_one_lock_is_never_stuck() {
    explore(configurations::queue());
}

#[test]
fn a_lock_has_a_head_in_each_queue() {
    explore(configurations::queues());
}

#[test]
fn a_higher_priority_goes_first_unless_the_head_runs() {
    explore(configurations::priorities());
}

#[test]
fn a_task_with_a_dead_runner_blocks_no_other() {
    explore(configurations::runners());
}

#[test]
fn one_key_is_one_task() {
    explore(configurations::keys());
}

#[test]
fn a_key_is_reused_only_when_allowed() {
    explore(configurations::reused_keys());
}

#[test]
fn a_task_is_added_only_within_the_queue_limit_and_a_refused_one_takes_no_key() {
    explore(configurations::room());
}

#[test]
fn a_worker_that_missed_a_response_recovers_its_task_and_makes_one_attempt() {
    explore(configurations::missed_responses());
}

#[test]
fn a_prefetched_task_counts_once_started() {
    explore(configurations::ahead());
}

#[test]
fn a_task_that_lost_its_worker_twice_waits_for_the_default_delay() {
    explore(configurations::lost_leases());
}

#[test]
fn a_task_that_lost_its_workers_is_delayed_and_runs_alone() {
    explore(configurations::repeated_crashes());
}

#[test]
fn three_workers_have_every_property_within_a_bound() {
    explore(configurations::three_workers());
}

/// Visits every state of a configuration; or, if it has a bound, every state within it, nearest
/// first.
fn explore(config: Config) {
    let (start, depth) = (Instant::now(), config.depth);
    let checker = System::new(config, CORRECT).checker();
    match depth {
        Some(depth) => report(&checker.target_max_depth(depth).spawn_bfs().join(), start),
        None => report(&checker.spawn_dfs().join(), start),
    }
}

/// Prints the number of states, and fails unless every property holds.
fn report(checker: &impl Checker<System>, start: Instant) {
    let Config { name, depth, must_cover, .. } = checker.model().config;
    println!(
        "tasks {name:<12} {:>9} states {:>8} unique {:>3} deep{} {:>6.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        if depth.is_some() { " (bound)" } else { "        " },
        start.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
    assert!(checker.is_done(), "{name}: some states were not visited");
    let uncovered: Vec<_> =
        must_cover.iter().filter(|situation| !checker.model().coverage.has(**situation)).collect();
    assert!(uncovered.is_empty(), "{name}: never occurred, so it was not tested: {uncovered:?}");
}
