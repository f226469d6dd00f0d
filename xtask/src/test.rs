//! `cargo xtask test`: all checks of a change in a fixed order, up to the first failure.

mod counts;
mod steps;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::engines::{ScopedEngines, Skip};
use counts::TestCounts;
use steps::{Step, steps};

/// Runs the steps, and prints their durations and the number of tests.
pub(crate) fn run(root: &Path, filter: Option<&str>, skip: &Skip) -> Result<ExitCode> {
    let mut results = Vec::new();
    let mut counts = TestCounts::default();
    let mut code = 0;
    for step in steps(filter) {
        println!("\n==> {step}");
        let start = Instant::now();
        // Started only when needed: an earlier failure costs no start.
        let engines = step.needs_engines().then(|| ScopedEngines::new(root, skip)).transpose()?;
        let variables = engines.as_ref().map_or(&[][..], |engines| &engines.variables);
        code = step.run(root, variables, &mut counts)?;
        drop(engines);
        results.push(StepResult { step, took: start.elapsed(), code });
        if code != 0 {
            break;
        }
    }
    print_table(&results);
    if counts.has_run() {
        println!("{counts}");
    }
    Ok(ExitCode::from(code))
}

struct StepResult {
    step: Step,
    took: Duration,
    code: u8,
}

fn print_table(results: &[StepResult]) {
    println!("\n{:<8} {:>8}  result", "step", "seconds");
    for StepResult { step, took, code } in results {
        let result = if *code == 0 { "ok".into() } else { format!("failed (exit code {code})") };
        println!("{:<8} {:>8.1}  {result}", step.name, took.as_secs_f64());
    }
    println!();
}
