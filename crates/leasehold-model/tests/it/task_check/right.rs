//! The rules as they are keep every promise in every world.

use std::time::Instant;

use stateright::{Checker, Model};

use super::config::Config;
use super::rules::RIGHT;
use super::system::System;
use super::worlds;

#[test]
fn a_task_goes_from_hand_to_hand_and_old_writes_are_refused() {
    explore(worlds::in_turn());
}

#[test]
fn a_sign_of_life_keeps_a_lease_and_a_crash_ends_it() {
    explore(worlds::signs());
}

#[test]
fn every_verdict_counts_once() {
    explore(worlds::verdicts());
}

#[test]
fn people_may_step_in_at_any_time() {
    explore(worlds::by_hand());
}

#[test]
fn an_update_with_old_news_changes_nothing() {
    explore(worlds::updates());
}

#[test]
fn two_sweepers_with_old_news_end_no_live_lease() {
    explore(worlds::sweepers());
}

#[test]
fn of_two_tasks_with_one_lock_one_runs_and_none_is_stuck() {
    explore(worlds::locked());
}

#[test]
fn a_queue_for_one_lock_is_never_stuck() {
    explore(worlds::queue());
}

#[test]
fn a_lock_has_a_head_in_each_queue() {
    explore(worlds::queues());
}

#[test]
fn a_better_task_goes_first_unless_the_head_runs_already() {
    explore(worlds::better());
}

#[test]
fn a_task_whose_runner_is_gone_is_in_nobodys_way() {
    explore(worlds::runners());
}

#[test]
fn one_key_is_one_task() {
    explore(worlds::keys());
}

#[test]
fn a_key_is_used_anew_only_when_it_may() {
    explore(worlds::anew());
}

#[test]
fn a_task_is_added_only_where_there_is_room_and_a_refused_one_takes_no_key() {
    explore(worlds::room());
}

#[test]
fn a_worker_that_missed_an_answer_finds_its_task_and_makes_one_attempt() {
    explore(worlds::strays());
}

#[test]
fn what_is_fetched_ahead_counts_once_it_was_started() {
    explore(worlds::ahead());
}

#[test]
fn what_lost_its_worker_twice_waits_for_its_usual_pause() {
    explore(worlds::lost());
}

#[test]
fn what_lost_its_workers_comes_back_after_a_pause_and_runs_alone() {
    explore(worlds::poison());
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
        "tasks {name:<12} {:>9} states {:>8} unique {:>3} deep{} {:>6.1} s",
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
