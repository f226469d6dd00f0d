//! Tests that the rules have every property in every configuration.

use std::time::Instant;

use stateright::{Checker, Model};

use super::config::Config;
use super::configurations;
use super::rules::CORRECT;
use super::system::System;

#[test]
fn two_workers_never_both_believe_to_hold() {
    explore(configurations::everything());
}

#[test]
fn a_lock_changes_holders_and_old_writes_are_refused() {
    explore(configurations::alternating());
}

#[test]
fn a_shorter_renewal_leaves_no_belief_behind() {
    explore(configurations::shorter_renewals());
}

#[test]
fn a_lost_reply_and_a_retry_create_one_lease() {
    explore(configurations::retries());
}

#[test]
fn a_request_delivered_twice_is_harmless() {
    explore(configurations::duplicates());
}

#[test]
fn a_silent_waiter_blocks_no_other() {
    explore(configurations::queue());
}

#[test]
fn the_last_request_acquires_the_lock_or_leaves_the_queue() {
    explore(configurations::stops_waiting());
}

#[test]
fn three_waiters_are_granted_in_order() {
    explore(configurations::three());
}

#[test]
fn two_sweepers_with_stale_reads_end_no_live_lease() {
    explore(configurations::sweepers());
}

#[test]
fn readers_and_a_writer_never_hold_together() {
    explore(configurations::shared());
}

#[test]
fn priority_goes_first_and_waiting_time_catches_up() {
    explore(configurations::priority());
}

#[test]
fn a_counted_lock_has_no_more_holders_than_any_of_them_accepts() {
    explore(configurations::counted());
}

#[test]
fn a_deleted_and_recreated_lock_has_every_property() {
    explore(configurations::deletion());
}

#[test]
fn tokens_rise_across_a_deletion_and_a_clock_set_back() {
    explore(configurations::clock_set_back());
}

#[test]
fn a_steal_takes_only_stale_leases() {
    explore(configurations::stealing());
}

#[test]
fn a_retained_lease_keeps_others_out_for_its_time() {
    explore(configurations::retained());
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
        "configuration {name:<12} {:>9} states {:>8} unique {:>3} deep{} {:>6.1} s",
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
