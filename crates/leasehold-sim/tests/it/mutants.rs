//! Each planted mistake of a client is found.

use std::time::Duration;

use leasehold_sim::{Mutation, Plan, simulate};

/// Number of seeds within which each mistake is found.
const SEEDS: u64 = 40;

#[test]
fn each_planted_mistake_is_found() {
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let found = (1..=SEEDS).find_map(|seed| {
            let outcome = simulate(Plan::new(seed, Duration::from_hours(1)).with(mutation));
            outcome.violations.into_iter().next().map(|violation| (seed, violation))
        });
        match found {
            Some((seed, violation)) => {
                println!("{mutation}: seed {seed}, {}: {}", violation.property, violation.message);
            }
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
