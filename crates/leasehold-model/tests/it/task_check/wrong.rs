//! Rules that are wrong on purpose are caught, each by the promise that it breaks.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use super::mutants::{Mutant, all};
use super::promises::Promise;
use super::system::System;

#[test]
fn every_wrong_rule_is_caught() {
    let missed: Vec<_> =
        all().into_iter().filter(|mutant| !is_caught(mutant)).map(|mutant| mutant.name).collect();
    assert!(missed.is_empty(), "nobody noticed that {missed:#?}");
}

/// A promise that no wrong rule breaks would not be known to be looked after.
#[test]
fn every_promise_catches_a_wrong_rule() {
    let caught: Vec<_> = all().iter().map(|mutant| mutant.breaks).collect();
    let idle: Vec<_> = Promise::ALL.iter().filter(|promise| !caught.contains(promise)).collect();
    assert!(idle.is_empty(), "no wrong rule breaks {idle:?}");
}

fn is_caught(mutant: &Mutant) -> bool {
    let mut system = System::new((mutant.world)(), mutant.rules);
    system.sought = Some(mutant.breaks);
    let (world, promise) = (system.config.name, mutant.breaks.name());
    let until = HasDiscoveries::AnyOf(BTreeSet::from([promise]));
    let checker = system.checker().finish_when(until).spawn_bfs().join();
    let caught = checker.discovery(promise).is_some();
    println!(
        "wrong {:<52} {} {promise:<52} {world:<12} {:>8} states",
        mutant.name,
        if caught { "breaks" } else { "MISSED" },
        checker.state_count(),
    );
    caught
}
