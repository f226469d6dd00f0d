//! Plan of a simulation, derived from its seed.

use std::fmt;
use std::time::Duration;

use crate::mutation::Mutation;

/// Engine of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// The engine `memory:`, for everything.
    Memory,
    /// Locks as documents with compare-and-swap, by the clock of the engine; tasks in memory.
    Cas,
    /// Locks as documents with compare-and-swap, on an engine without a clock: clients have wrong
    /// clocks, and reads may be old; tasks in memory.
    CasWithoutClock,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Cas => "cas",
            Self::CasWithoutClock => "cas-without-clock",
        })
    }
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Seed of all random choices.
    pub seed: u64,
    /// Virtual time until faults end and the work is completed.
    pub duration: Duration,
    /// Engine of the locks.
    pub engine: EngineKind,
    /// TTL of all leases.
    pub ttl: Duration,
    /// Number of processes that run at the same time.
    pub processes: u32,
    /// Longest time between two requests of a loop.
    pub idle: Duration,
    /// Whether there are tasks and workflows.
    pub tasks: bool,
    /// Whether there is a schedule, if there are tasks.
    pub schedule: bool,
    /// Faults of single calls, per 1000 calls.
    pub call_faults: u32,
    /// Average interval of faults of whole processes: pauses, outages, kills.
    pub fault_interval: Duration,
    /// Mistake that is planted in the client.
    pub mutation: Option<Mutation>,
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn new(seed: u64, duration: Duration) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let engines = [EngineKind::Memory, EngineKind::Memory, EngineKind::Cas, EngineKind::CasWithoutClock];
        let seconds = |choices: &[u64], rng: &mut fastrand::Rng| {
            Duration::from_secs(choices[rng.usize(..choices.len())])
        };
        Self {
            seed,
            duration,
            engine: engines[rng.usize(..engines.len())],
            ttl: seconds(&[15, 20, 30], &mut rng),
            processes: rng.u32(2..=4),
            idle: seconds(&[20, 120, 600], &mut rng),
            tasks: rng.u8(0..3) == 0,
            schedule: rng.u8(0..3) == 0,
            call_faults: [2, 10, 40][rng.usize(..3)],
            fault_interval: seconds(&[60, 180, 600], &mut rng),
            mutation: None,
        }
    }

    /// Plants a mistake. The plan is one in which it shows soon: its engine, a short TTL, much load and
    /// many faults.
    #[must_use]
    pub fn with(mut self, mutation: Mutation) -> Self {
        self.mutation = Some(mutation);
        self.engine = EngineKind::Memory;
        self.tasks = mutation.needs_tasks();
        self.schedule = mutation == Mutation::TicksWithoutKey;
        (self.ttl, self.idle) = (Duration::from_secs(15), Duration::from_secs(30));
        (self.processes, self.call_faults, self.fault_interval) = (3, 30, Duration::from_mins(1));
        self
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, engine, processes, .. } = self;
        let (ttl, idle) = (self.ttl.as_secs(), self.idle.as_secs());
        write!(f, "seed {seed}: {engine}, {processes} processes, ttl {ttl} s, idle {idle} s")?;
        if self.tasks {
            f.write_str(if self.schedule { ", tasks, schedule" } else { ", tasks" })?;
        }
        match self.mutation {
            Some(mutation) => write!(f, ", mutant {mutation}"),
            None => Ok(()),
        }
    }
}
