//! The right way keeps its promises, whatever a read shows; the wrong ones are caught.

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use super::system::{NOT_WRONGED, ONE_HOLDER, System, TTL, Tip, Ways};

const RIGHT: Ways = Ways { forces: false, is_over, believes_reads: false, late_answers_count: false };
const TWO: System = System { ways: RIGHT, workers: 2, horizon: 5, beats: 1, waits: 1 };

/// It was watched for its whole time.
fn is_over(tip: Tip, watches: Option<(u8, u8)>, now: u8) -> bool {
    watches.is_some_and(|(sign, since)| sign == tip.sign && now >= since + TTL)
}

/// The date of the tip says so.
fn its_date_says_so(tip: Tip, _: Option<(u8, u8)>, now: u8) -> bool {
    now >= tip.date + TTL
}

/// Any sign of life was seen so long ago, be it another one now.
fn any_sign_was_seen(_: Tip, watches: Option<(u8, u8)>, now: u8) -> bool {
    watches.is_some_and(|(_, since)| now >= since + TTL)
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
fn a_ref_that_is_moved_by_force_is_no_lock() {
    is_caught(Ways { forces: true, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn the_date_of_a_tip_without_a_margin_is_no_clock() {
    is_caught(Ways { is_over: its_date_says_so, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn a_sign_of_life_begins_the_watch_anew() {
    is_caught(Ways { is_over: any_sign_was_seen, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn a_late_answer_does_not_count() {
    is_caught(Ways { late_answers_count: true, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn that_it_is_gone_is_not_believed_from_a_read() {
    is_caught(Ways { believes_reads: true, ..RIGHT }, NOT_WRONGED);
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

fn is_caught(ways: Ways, promise: &'static str) {
    let until = HasDiscoveries::AnyOf(BTreeSet::from([promise]));
    let checker = System { ways, ..TWO }.checker().finish_when(until).spawn_bfs().join();
    println!("caught after {} states", checker.state_count());
    assert!(checker.discovery(promise).is_some(), "nobody noticed");
}
