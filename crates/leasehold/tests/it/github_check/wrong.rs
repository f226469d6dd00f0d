//! Every wrong protocol is caught.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use super::right::TWO;
use super::rules::{self, RIGHT, Rules};
use super::system::{ONE_HOLDER, RECOVERY, System};

#[test]
fn the_lowest_id_does_not_win() {
    is_caught(Rules { judge: rules::lowest_id_wins, clears: false, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn to_assign_and_then_verify_is_no_lock() {
    is_caught(Rules { judge: rules::finds_itself, clears: false, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn a_late_answer_does_not_count() {
    is_caught(Rules { until: rules::late_answers_count, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn flags_count_as_leases_do() {
    is_caught(Rules { judge: rules::flags_do_not_count, clears: false, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn whoever_does_not_look_is_caught() {
    is_caught(Rules { looks: false, ..RIGHT }, ONE_HOLDER);
}

#[test]
fn whole_seconds_need_a_margin() {
    let wrong = Rules { judge: rules::judge_without_margin, is_in_the_way: rules::no_margin, ..RIGHT };
    is_caught(wrong, ONE_HOLDER);
}

#[test]
fn the_dead_do_not_count_for_ever() {
    let wrong = Rules { judge: rules::judge_for_ever, is_in_the_way: rules::for_ever, ..RIGHT };
    is_caught(wrong, RECOVERY);
}

#[test]
fn a_list_from_before_our_own_flag_tells_nothing() {
    let system = System { old_lists: true, ..TWO };
    is_caught_in(System { rules: Rules { judge: rules::believes_old_lists, ..RIGHT }, ..system }, ONE_HOLDER);
}

fn is_caught(rules: Rules, promise: &'static str) {
    is_caught_in(System { rules, ..TWO }, promise);
}

fn is_caught_in(system: System, promise: &'static str) {
    let until = HasDiscoveries::AnyOf(BTreeSet::from([promise]));
    let checker = system.checker().finish_when(until).spawn_bfs().join();
    println!("caught after {} states", checker.state_count());
    assert!(checker.discovery(promise).is_some(), "nobody noticed");
}
