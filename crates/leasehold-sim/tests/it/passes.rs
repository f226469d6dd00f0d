//! The client without a planted mistake passes, and a seed gives one history.

use std::time::Duration;

use leasehold_sim::{EngineKind, Outcome, Plan, simulate};

/// Runs a plan, and panics with the command that replays it if a promise is violated.
#[track_caller]
fn passes(plan: Plan) -> Outcome {
    let outcome = simulate(plan);
    let (seed, minutes) = (outcome.plan.seed, outcome.plan.duration.as_secs() / 60);
    if let Some(violation) = outcome.violations.first() {
        panic!(
            "{}\n{violation}\nreplay with: cargo xtask simulate --seed {seed} --minutes {minutes}",
            outcome.plan
        );
    }
    outcome
}

#[test]
fn the_client_keeps_its_promises() {
    for seed in 1..=12 {
        passes(Plan::new(seed, Duration::from_mins(15)));
    }
}

#[test]
fn a_seed_gives_the_same_history_byte_by_byte() {
    for engine in [EngineKind::Memory, EngineKind::Cas, EngineKind::CasWithoutClock] {
        let run = || {
            let outcome = simulate(Plan {
                engine,
                tasks: true,
                schedule: true,
                ..Plan::new(7, Duration::from_mins(10))
            });
            let mut history = Vec::new();
            outcome.history.write(&mut history).unwrap();
            history
        };
        let (one, other) = (run(), run());
        assert!(one.len() > 5_000, "{} bytes", one.len());
        assert!(one == other, "the histories of {engine} differ");
    }
}
