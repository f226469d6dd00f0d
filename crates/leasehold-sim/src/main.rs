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
    /// Virtual hours of each run, until its faults end
    #[arg(long, default_value_t = 8)]
    hours: u32,
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
    fn minutes(&self) -> u32 {
        self.minutes.unwrap_or(60 * self.hours)
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let first = cli.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let threads = cli.threads.or_else(|| available_parallelism().ok()).map_or(1, NonZero::get);
    let (started, next, failed) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= cli.runs {
                        return;
                    }
                    if !run(&cli, first.saturating_add(number)) {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (took, failed) = (started.elapsed().as_secs_f64(), failed.into_inner());
    let hours = f64::from(cli.minutes()) / 60.0 * f64::from(u32::try_from(cli.runs).unwrap_or(u32::MAX));
    println!(
        "{} runs, {hours:.0} virtual hours in {took:.1} s, {:.0} per minute, {failed} with violations",
        cli.runs,
        hours * 60.0 / took
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one simulation and prints its result; returns whether all promises held.
fn run(cli: &Cli, seed: u64) -> bool {
    let plan = Plan::new(seed, Duration::from_mins(cli.minutes().into()));
    let plan = match cli.mutant {
        Some(mutation) => plan.with(mutation),
        None => plan,
    };
    let started = Instant::now();
    let outcome = simulate(plan);
    // Lines of one run stay together.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(
        out,
        "{}: {} records, {} violations, {:.2} s",
        outcome.plan,
        outcome.history.records.len(),
        outcome.violations.len(),
        started.elapsed().as_secs_f64()
    );
    if cli.history {
        let _ = outcome.history.write(&mut out);
    }
    if let Some(first) = outcome.violations.first() {
        let mutant = cli.mutant.map_or(String::new(), |mutant| format!(" --mutant {mutant}"));
        let minutes = cli.minutes();
        let _ = writeln!(
            out,
            "{first}\nreplay with: cargo xtask simulate --seed {seed} --minutes {minutes}{mutant}\n"
        );
    }
    outcome.violations.is_empty()
}
