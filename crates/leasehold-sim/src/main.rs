//! Command of `cargo xtask simulate`: runs simulations, and prints the seed and the excerpt of each that
//! violates a promise.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use leasehold_sim::{Mutation, Outcome, Plan, simulate};

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
    let started = Instant::now();
    let mut failed = 0;
    for seed in first..first.saturating_add(cli.runs) {
        let plan = Plan::new(seed, Duration::from_mins(cli.minutes().into()));
        let plan = match cli.mutant {
            Some(mutation) => plan.with(mutation),
            None => plan,
        };
        let run_started = Instant::now();
        let outcome = simulate(plan);
        println!(
            "{}: {} records, {} violations, {:.2} s",
            outcome.plan,
            outcome.history.records.len(),
            outcome.violations.len(),
            run_started.elapsed().as_secs_f64()
        );
        if cli.history {
            let _ = outcome.history.write(std::io::stdout().lock());
        }
        if !outcome.violations.is_empty() {
            failed += 1;
            report(&cli, &outcome);
        }
    }
    let took = started.elapsed().as_secs_f64();
    let hours = f64::from(cli.minutes()) / 60.0 * f64::from(u32::try_from(cli.runs).unwrap_or(u32::MAX));
    println!(
        "{} runs, {hours:.0} virtual hours in {took:.1} s, {:.0} per minute, {failed} with violations",
        cli.runs,
        hours * 60.0 / took
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the first violation of a run, and the command that replays it.
fn report(cli: &Cli, outcome: &Outcome) {
    if let Some(first) = outcome.violations.first() {
        println!("{first}");
    }
    let mutant = cli.mutant.map_or(String::new(), |mutant| format!(" --mutant {mutant}"));
    println!(
        "replay with: cargo xtask simulate --seed {} --minutes {}{mutant}\n",
        outcome.plan.seed,
        cli.minutes()
    );
}
