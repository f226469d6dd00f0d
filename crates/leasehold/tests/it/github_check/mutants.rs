//! Tests that every mutant of the protocol is caught.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use super::passes::TWO;
use super::rules::{self, CORRECT, Rules};
use super::system::{ONE_HOLDER, RECOVERY, System};

#[test]
fn lowest_id_wins_is_caught() {
    assert_caught(Rules { decide: rules::lowest_id_wins, clears: false, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn assign_then_verify_is_caught() {
    assert_caught(Rules { decide: rules::assign_then_verify, clears: false, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn a_late_response_does_not_count() {
    assert_caught(Rules { until: rules::late_responses_count, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn ignoring_candidates_is_caught() {
    assert_caught(Rules { decide: rules::ignores_candidates, clears: false, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn a_worker_that_does_not_read_is_caught() {
    assert_caught(Rules { reads: false, ..CORRECT }, ONE_HOLDER);
}

#[test]
fn a_missing_margin_is_caught() {
    let mutant = Rules { decide: rules::decide_without_margin, conflicts: rules::no_margin, ..CORRECT };
    assert_caught(mutant, ONE_HOLDER);
}

#[test]
fn claims_without_expiry_are_caught() {
    let mutant = Rules { decide: rules::decide_without_expiry, conflicts: rules::no_expiry, ..CORRECT };
    assert_caught(mutant, RECOVERY);
}

#[test]
fn trusting_a_stale_list_is_caught() {
    let system = System { stale_lists: true, ..TWO };
    assert_caught_in(
        System { rules: Rules { decide: rules::trusts_stale_lists, ..CORRECT }, ..system },
        ONE_HOLDER,
    );
}

fn assert_caught(rules: Rules, property: &'static str) {
    assert_caught_in(System { rules, ..TWO }, property);
}

fn assert_caught_in(system: System, property: &'static str) {
    let until = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = system.checker().finish_when(until).spawn_bfs().join();
    println!("caught after {} states", checker.state_count());
    assert!(checker.discovery(property).is_some(), "the mutant was not caught");
}
