//! Each planted mistake of a client is found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold_sim::{Mutation, Plan, simulate};

/// Number of seeds within which each mistake is found.
const SEEDS: u64 = 40;

#[test]
fn each_planted_mistake_is_found() {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // The state of a simulation belongs to its thread.
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutation) = Mutation::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !is_found(*mutation) {
                        missed.lock().unwrap().push(*mutation);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}

fn is_found(mutation: Mutation) -> bool {
    let found = (1..=SEEDS).find_map(|seed| {
        let outcome = simulate(Plan::new(seed, Duration::from_hours(1)).with(mutation));
        outcome.violations.into_iter().next().map(|violation| (seed, violation))
    });
    if let Some((seed, violation)) = &found {
        println!("{mutation}: seed {seed}, {}: {}", violation.property, violation.message);
    }
    found.is_some()
}
