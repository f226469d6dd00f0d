//! The rules as they are keep every promise in every world.

use std::time::Instant;

use stateright::{Checker, Model};

use super::config::Config;
use super::rules::RIGHT;
use super::system::System;
use super::worlds;

#[test]
fn two_workers_never_both_believe_whatever_happens() {
    explore(worlds::everything());
}

#[test]
fn a_lock_goes_from_hand_to_hand_and_old_writes_are_refused() {
    explore(worlds::in_turn());
}

#[test]
fn a_renewal_for_less_time_leaves_no_belief_behind() {
    explore(worlds::shorter());
}

#[test]
fn a_lost_reply_and_a_retry_make_one_lease() {
    explore(worlds::retries());
}

#[test]
fn a_request_that_is_delivered_twice_does_no_harm() {
    explore(worlds::twice());
}

#[test]
fn a_waiter_that_falls_silent_blocks_nobody() {
    explore(worlds::queue());
}

#[test]
fn the_last_asking_takes_the_lock_or_leaves_the_queue() {
    explore(worlds::impatient());
}

#[test]
fn three_in_a_queue_are_served_in_order() {
    explore(worlds::three());
}

#[test]
fn two_sweepers_with_old_news_end_nothing_alive() {
    explore(worlds::sweepers());
}

#[test]
fn readers_and_a_writer_never_meet() {
    explore(worlds::shared());
}

#[test]
fn priority_goes_first_and_waiting_long_catches_up() {
    explore(worlds::priority());
}

#[test]
fn a_counted_lock_has_no_more_holders_than_any_of_them_accepts() {
    explore(worlds::counted());
}

#[test]
fn a_lock_that_is_forgotten_and_made_again_breaks_no_promise() {
    explore(worlds::forgetful());
}

#[test]
fn tokens_rise_over_a_forgotten_lock_and_a_clock_that_was_set_back() {
    explore(worlds::set_back());
}

#[test]
fn a_thief_takes_only_what_is_stale() {
    explore(worlds::thieves());
}

#[test]
fn a_kept_lease_keeps_others_out_for_its_time() {
    explore(worlds::kept());
}

#[test]
fn three_workers_keep_every_promise_within_a_bound() {
    explore(worlds::crowd());
}

/// Visits every state of a world; or, if the world has a bound, every state within it, nearest first.
fn explore(config: Config) {
    let (start, depth) = (Instant::now(), config.depth);
    let checker = System::new(config, RIGHT).checker();
    match depth {
        Some(depth) => report(&checker.target_max_depth(depth).spawn_bfs().join(), start),
        None => report(&checker.spawn_dfs().join(), start),
    }
}

/// Prints how much was seen, and fails unless all was well.
fn report(checker: &impl Checker<System>, start: Instant) {
    let Config { name, depth, must_see, .. } = checker.model().config;
    println!(
        "world {name:<12} {:>9} states {:>8} unique {:>3} deep{} {:>6.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        if depth.is_some() { " (bound)" } else { "        " },
        start.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
    assert!(checker.is_done(), "{name}: there are states that were not visited");
    let unseen: Vec<_> = must_see.iter().filter(|fact| !checker.model().facts.has(**fact)).collect();
    assert!(unseen.is_empty(), "{name}: never happened, so nothing was put to the test: {unseen:?}");
}
