//! One simulation from its plan to its history and its violations.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold::testing::Simulation;
use leasehold_torture::history::{Event, FORMAT, Header, Record};
use leasehold_torture::{History, check};
use tokio::task::JoinSet;

use crate::auditor;
use crate::mutation::Mutation;
use crate::plan::{EngineKind, Plan};
use crate::processes::{Processes, inject_faults};
use crate::tasks;
use crate::world::{Finding, World, millis};

/// Virtual time in which all loops end after the last fault.
const LOOPS_END_WITHIN: Duration = Duration::from_mins(15);

/// Interval at which a run that has found a violation ends.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// Result of a simulation.
#[derive(Debug)]
pub struct Outcome {
    /// What was simulated.
    pub plan: Plan,
    /// What all processes have recorded.
    pub history: History,
    /// What was violated.
    pub violations: Vec<Violation>,
}

/// Violation of a promise.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Name of the promise, as in `docs/promises.md`, or of the group of promises.
    pub property: String,
    /// What is violated, and by what.
    pub message: String,
    /// Records that show it, by time.
    pub excerpt: Vec<Record>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.property, self.message)?;
        for record in &self.excerpt {
            writeln!(f, "  {}", serde_json::to_string(record).unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Runs a simulation.
pub fn simulate(plan: Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O can be built");
    let simulation = {
        let _entered = runtime.enter();
        let mutant = plan.mutation.and_then(Mutation::in_client);
        Simulation::start(plan.seed, tokio::time::Instant::now(), mutant)
    };
    let (world, violation) = runtime.block_on(run(plan));
    drop(runtime);
    drop(simulation);
    let (plan, records, findings) = {
        let mut state = world.state();
        (world.plan.clone(), std::mem::take(&mut state.records), std::mem::take(&mut state.violations))
    };
    let history = History::new(header(&plan), records);
    let mut violations: Vec<Violation> = violation.into_iter().collect();
    violations.extend(findings.into_iter().map(|finding| shown(&history, finding)));
    for checked in check(&history) {
        violations.extend(checked.violations.into_iter().map(|violation| Violation {
            property: checked.property.to_string(),
            message: violation.message,
            excerpt: violation.excerpt,
        }));
    }
    Outcome { plan, history, violations }
}

/// Runs the processes of a simulation, then lets all work end without faults.
async fn run(plan: Plan) -> (Arc<World>, Option<Violation>) {
    let world = World::new(plan);
    let processes = Processes::new(world.clone());
    for _ in 0..world.plan.processes {
        processes.start_another();
    }
    let mut background = JoinSet::new();
    background.spawn(auditor::run(world.clone(), processes.clone()));
    background.spawn(inject_faults(world.clone(), processes.clone()));
    let mut left = world.plan.duration;
    while !left.is_zero() {
        let step = left.min(LOOK_EVERY);
        tokio::time::sleep(step).await;
        left -= step;
        if world.has_violations() {
            return (world, None);
        }
    }
    world.drain();
    let ended = tokio::time::timeout(LOOPS_END_WITHIN, processes.ended()).await;
    if world.plan.tasks {
        tasks::finish(&world).await;
    }
    background.shutdown().await;
    processes.stop().await;
    let violation = ended.is_err().then(|| Violation {
        property: "L5".to_owned(),
        message: format!("calls of the client do not end within {} s", LOOPS_END_WITHIN.as_secs()),
        excerpt: Vec::new(),
    });
    (world, violation)
}

fn header(plan: &Plan) -> Header {
    Header {
        format: FORMAT,
        store: format!("simulated:{}", plan.engine),
        engine: plan.engine.to_string(),
        seed: plan.seed,
        ttl_millis: millis(plan.ttl),
        workers: plan.processes,
        proxied: true,
        queues: plan.engine == EngineKind::Memory,
        tasks: plan.tasks,
    }
}

/// Returns a violation with the records of its operations, and the faults of their processes in the
/// two minutes before it.
fn shown(history: &History, finding: Finding) -> Violation {
    let Finding { at, property, message, ops } = finding;
    let from = at.saturating_sub(120_000_000);
    let is_of = |record: &Record| match &record.event {
        Event::Sink { worker, op, .. } => ops.contains(&(*worker, *op)),
        Event::Fault { worker, .. } => {
            record.at >= from && record.at <= at && ops.iter().any(|op| op.0 == *worker)
        }
        event => event.op().is_some_and(|op| ops.contains(&(record.process, op))),
    };
    let excerpt = history.records.iter().filter(|record| is_of(record)).cloned().collect();
    Violation { property: property.to_owned(), message, excerpt }
}
