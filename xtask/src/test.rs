//! `cargo xtask test`: every step that must pass before a change goes in, in one order, stopping at the first failure.

mod steps;
mod tally;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::engines::{Borrowed, Skip};
use steps::{Step, steps};
use tally::Tally;

/// Runs the steps, prints what each took, and ends with the count of tests.
pub(crate) fn run(root: &Path, filter: Option<&str>, skip: &Skip) -> Result<ExitCode> {
    let mut done = Vec::new();
    let mut tally = Tally::default();
    let mut code = 0;
    for step in steps(filter) {
        println!("\n==> {step}");
        let start = Instant::now();
        // Only for as long as they are needed: what fails before costs no start.
        let engines = step.needs_engines().then(|| Borrowed::new(root, skip)).transpose()?;
        let variables = engines.as_ref().map_or(&[][..], |engines| &engines.variables);
        code = step.run(root, variables, &mut tally)?;
        drop(engines);
        done.push(Done { step, took: start.elapsed(), code });
        if code != 0 {
            break;
        }
    }
    print_table(&done);
    if tally.has_run() {
        println!("{tally}");
    }
    Ok(ExitCode::from(code))
}

struct Done {
    step: Step,
    took: Duration,
    code: u8,
}

fn print_table(done: &[Done]) {
    println!("\n{:<8} {:>8}  result", "step", "seconds");
    for Done { step, took, code } in done {
        let result = if *code == 0 { "ok".into() } else { format!("failed (exit code {code})") };
        println!("{:<8} {:>8.1}  {result}", step.name, took.as_secs_f64());
    }
    println!();
}
