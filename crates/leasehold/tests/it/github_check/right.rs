//! The right protocol never has two holders, and the dead are followed.

use std::time::Instant;

use stateright::{Checker, Model};

use super::rules::RIGHT;
use super::system::System;

/// With old lists as long as each is one that was true once, as a whole.
pub(super) const TWO: System = System { rules: RIGHT, workers: 2, horizon: 6, old_lists: false, beats: 1 };

#[test]
fn two_workers_never_both_hold_whatever_happens() {
    explore("two", TWO, None);
}

#[test]
fn two_workers_never_both_hold_with_lists_that_are_old() {
    explore("old lists", System { horizon: 5, old_lists: true, ..TWO }, None);
}

#[test]
fn three_workers_never_both_hold_within_a_bound() {
    explore("three", System { workers: 3, horizon: 5, beats: 0, ..TWO }, Some(15));
}

fn explore(name: &str, system: System, depth: Option<usize>) {
    let start = Instant::now();
    let checker = system.checker();
    let checker = match depth {
        Some(depth) => checker.target_max_depth(depth).spawn_bfs().join(),
        None => checker.spawn_bfs().join(),
    };
    println!(
        "world {name:<12} {:>9} states {:>8} unique {:>3} deep {:>6.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
}
