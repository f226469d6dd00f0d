//! Command of `cargo xtask simulate`: runs simulations, and prints the seed and the excerpt of each that
//! violates a promise.

use std::io::Write;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::Parser;
use leasehold_sim::{Mutation, Plan, simulate};

#[derive(Parser)]
#[command(name = "cargo xtask simulate", about = "Simulate clients of a store under a virtual clock")]
struct Cli {
    /// First seed; random by default
    #[arg(long)]
    seed: Option<u64>,
    /// Virtual hours of each run, until its faults end [default: 8 for a busy seed, up to 240 for one with few
    /// requests]
    #[arg(long)]
    hours: Option<u32>,
    /// Virtual minutes of each run, instead of hours
    #[arg(long, conflicts_with = "hours")]
    minutes: Option<u32>,
    /// Number of runs, each with the next seed
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Number of runs at the same time [default: the number of processors]
    #[arg(long)]
    threads: Option<NonZero<usize>>,
    /// Plants this mistake in the client, to see that it is found
    #[arg(long)]
    mutant: Option<Mutation>,
    /// Print the history of each run
    #[arg(long)]
    history: bool,
}

impl Cli {
    /// Returns the plan of a seed: with the duration of the command line, or with one that gives each seed about
    /// the same number of requests.
    fn plan(&self, seed: u64) -> Plan {
        let minutes = self.minutes.or(self.hours.map(|hours| 60 * hours));
        let mut plan = Plan::new(seed, Duration::from_mins(minutes.unwrap_or_default().into()));
        if let Some(mutation) = self.mutant {
            plan = plan.with(mutation);
        }
        if minutes.is_none() {
            let factor = u32::try_from(plan.idle.as_secs() / BUSY.as_secs()).unwrap_or(1);
            plan.duration = BUSY_DURATION * factor.max(1);
        }
        plan
    }
}

/// Longest time between two requests of a loop in a busy plan, and the virtual time of such a plan.
const BUSY: Duration = Duration::from_secs(20);
const BUSY_DURATION: Duration = Duration::from_hours(8);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let first = cli.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let threads = cli.threads.or_else(|| available_parallelism().ok()).map_or(1, NonZero::get);
    let (started, next, failed) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    let virtual_minutes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= cli.runs {
                        return;
                    }
                    let plan = cli.plan(first.saturating_add(number));
                    let minutes = minutes(&plan);
                    // A violation ends a run.
                    let (count, more) =
                        if run(&cli, plan) { (&virtual_minutes, minutes) } else { (&failed, 1) };
                    count.fetch_add(more, Ordering::Relaxed);
                }
            });
        }
    });
    let (took, failed) = (started.elapsed().as_secs_f64(), failed.into_inner());
    let hours = Duration::from_mins(virtual_minutes.into_inner()).as_secs_f64() / 3600.0;
    println!(
        "{} runs, {hours:.0} virtual hours in {took:.1} s, {:.0} per minute, {failed} with violations",
        cli.runs,
        hours * 60.0 / took
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn minutes(plan: &Plan) -> u64 {
    plan.duration.as_secs() / 60
}

/// Runs one simulation and prints its result; returns whether all promises held.
fn run(cli: &Cli, plan: Plan) -> bool {
    let (seed, minutes) = (plan.seed, minutes(&plan));
    let started = Instant::now();
    let outcome = simulate(plan);
    // Lines of one run stay together.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(
        out,
        "{}: {:.1} h, {} records, {} violations, {:.2} s",
        outcome.plan,
        Duration::from_mins(minutes).as_secs_f64() / 3600.0,
        outcome.history.records.len(),
        outcome.violations.len(),
        started.elapsed().as_secs_f64()
    );
    if cli.history {
        let _ = outcome.history.write(&mut out);
    }
    if let Some(first) = outcome.violations.first() {
        let mutant = cli.mutant.map_or(String::new(), |mutant| format!(" --mutant {mutant}"));
        let _ = writeln!(
            out,
            "{first}\nreplay with: cargo xtask simulate --seed {seed} --minutes {minutes}{mutant}\n"
        );
    }
    outcome.violations.is_empty()
}
