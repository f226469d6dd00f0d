//! Each planted mistake of a client is found.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use leasehold_sim::{Mutation, Plan, simulate};

/// Number of seeds within which each mistake is found. Most are found by the first one; starting a task without a
/// valid lease by one in thirty.
const SEEDS: u64 = 200;

#[test]
fn each_planted_mistake_is_found() {
    let missed: Vec<Mutation> = Mutation::ALL.into_iter().filter(|mutation| !is_found(*mutation)).collect();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}

/// Whether a seed finds this mistake. The state of a simulation belongs to its thread.
fn is_found(mutation: Mutation) -> bool {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (next, found) = (AtomicU64::new(1), OnceLock::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while found.get().is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > SEEDS {
                        break;
                    }
                    let outcome = simulate(Plan::new(seed, Duration::from_hours(1)).with(mutation));
                    if let Some(violation) = outcome.violations.into_iter().next() {
                        let _ = found.set((seed, violation));
                    }
                }
            });
        }
    });
    if let Some((seed, violation)) = found.get() {
        println!("{mutation}: seed {seed}, {}: {}", violation.property, violation.message);
    }
    found.get().is_some()
}
