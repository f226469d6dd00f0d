//! Tests that the protocol never has two holders, and that a dead holder is replaced.

use std::time::Instant;

use stateright::{Checker, Model};

use super::rules::CORRECT;
use super::system::System;

/// A stale list is a complete list from an earlier time.
pub(super) const TWO: System =
    System { rules: CORRECT, workers: 2, horizon: 6, stale_lists: false, renewals: 1 };

#[test]
fn two_workers_never_both_hold_whatever_happens() {
    explore("two", TWO, None);
}

#[test]
fn two_workers_never_both_hold_with_stale_lists() {
    explore("stale lists", System { horizon: 5, stale_lists: true, ..TWO }, None);
}

#[test]
fn three_workers_never_both_hold_within_a_bound() {
    explore("three", System { workers: 3, horizon: 5, renewals: 0, ..TWO }, Some(15));
}

fn explore(name: &str, system: System, depth: Option<usize>) {
    let start = Instant::now();
    let checker = system.checker();
    let checker = match depth {
        Some(depth) => checker.target_max_depth(depth).spawn_bfs().join(),
        None => checker.spawn_bfs().join(),
    };
    println!(
        "configuration {name:<12} {:>9} states {:>8} unique {:>3} deep {:>6.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
}
