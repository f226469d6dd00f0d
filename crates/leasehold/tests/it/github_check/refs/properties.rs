//! Tests that the protocol has its properties, whatever a read returns, and that mutants are
//! caught.

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use super::system::{NOT_MISINFORMED, ONE_HOLDER, Rules, System, TTL, Tip};

const CORRECT: Rules = Rules { force: false, has_ended, trusts_reads: false, late_responses_count: false };
const TWO: System = System { rules: CORRECT, workers: 2, horizon: 5, renewals: 1, waits: 1 };

/// Correct rule: the lease was observed unchanged for its whole TTL.
fn has_ended(tip: Tip, observed: Option<(u8, u8)>, now: u8) -> bool {
    observed.is_some_and(|(heartbeat, since)| heartbeat == tip.heartbeat && now >= since + TTL)
}

/// Mutant: the date of the tip decides, without a margin.
fn ended_by_date(tip: Tip, _: Option<(u8, u8)>, now: u8) -> bool {
    now >= tip.date + TTL
}

/// Mutant: any heartbeat was observed that long ago, even if there was another one since.
fn ended_by_any_heartbeat(_: Tip, observed: Option<(u8, u8)>, now: u8) -> bool {
    observed.is_some_and(|(_, since)| now >= since + TTL)
}

#[test]
fn two_workers_never_both_hold_whatever_they_read() {
    explore("two", TWO, None);
}

#[test]
fn three_workers_never_both_hold_within_a_bound() {
    explore("three", System { workers: 3, horizon: 4, waits: 0, ..TWO }, Some(14));
}

#[test]
fn forced_ref_updates_are_caught() {
    assert_caught(Rules { force: true, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn a_date_without_a_margin_is_caught() {
    assert_caught(Rules { has_ended: ended_by_date, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn ignoring_a_new_heartbeat_is_caught() {
    assert_caught(Rules { has_ended: ended_by_any_heartbeat, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn a_late_response_does_not_count() {
    assert_caught(Rules { late_responses_count: true, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn trusting_a_read_about_a_lost_lease_is_caught() {
    assert_caught(Rules { trusts_reads: true, ..CORRECT }, NOT_MISINFORMED);
}

fn explore(name: &str, system: System, depth: Option<usize>) {
    let start = Instant::now();
    let checker = system.checker();
    let checker = match depth {
        Some(depth) => checker.target_max_depth(depth).spawn_bfs().join(),
        None => checker.spawn_bfs().join(),
    };
    println!(
        "refs {name:<12} {:>9} states {:>8} unique {:>3} deep {:>6.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
}

fn assert_caught(rules: Rules, property: &'static str) {
    let until = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = System { rules, ..TWO }.checker().finish_when(until).spawn_bfs().join();
    println!("caught after {} states", checker.state_count());
    assert!(checker.discovery(property).is_some(), "the mutant was not caught");
}
