//! `torture`: runs processes against a store under faults, and checks what they saw.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use leasehold_torture::{Error, History, Plan, Progress, Report};

use super::context::{CommandResult, block_on};
use crate::cli::TortureArgs;
use crate::config::StoreChoice;
use crate::exit;
use crate::output::{Failure, Printer};

/// Runs a worker process. Needs no store: the coordinator names it.
pub(super) fn worker() -> CommandResult {
    leasehold_torture::run_worker().map_err(failure)?;
    Ok(exit::SUCCESS)
}

/// Checks a recorded history again.
pub(super) fn check(file: &Path, printer: Printer) -> CommandResult {
    let unreadable = |error: std::io::Error| {
        Failure::config(format!("cannot read {}: {error}", file.display()))
            .hint("write a history with: leasehold torture --record FILE")
    };
    let input = File::open(file).map_err(unreadable)?;
    report(&History::read(BufReader::new(input)).map_err(unreadable)?, printer)
}

/// Runs worker processes against the store.
pub(super) fn torture(args: &TortureArgs, store: &StoreChoice, printer: Printer) -> CommandResult {
    let program = std::env::current_exe().map_err(Failure::internal)?;
    let worker_command = vec![program.into(), "torture".into(), "worker".into()];
    let seed = args
        .seed
        .unwrap_or_else(|| u64::from(std::process::id()) ^ leasehold::BootInstant::now().as_micros());
    let plan = Plan {
        store: store.url.clone(),
        worker_command,
        duration: Duration::from_secs(args.seconds),
        workers: args.workers,
        locks: args.locks,
        faults: args.faults.0.clone(),
        seed,
        ttl: args.ttl.as_duration(),
    };
    // Created before the run: a file that cannot be written would lose its history.
    let record = args.record.as_deref().map(|path| create(path).map(|file| (path, file))).transpose()?;
    let shows_progress = !printer.json && !printer.quiet && std::io::stderr().is_terminal();
    block_on(async {
        let history = leasehold_torture::run(&plan, |progress| {
            if shows_progress {
                show(progress, plan.duration);
            }
        });
        let history = history.await.map_err(failure)?;
        if shows_progress {
            eprint!("\r\x1b[K");
        }
        if let Some((path, file)) = record {
            history.write(BufWriter::new(file)).map_err(|error| unwritable(path, &error))?;
        }
        report(&history, printer)
    })
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::config(format!("cannot write {}: {error}", path.display()))
}

/// Shows the progress on one line of the terminal.
fn show(progress: Progress, duration: Duration) {
    let Progress { elapsed, grants, tasks, faults, is_draining, .. } = progress;
    let phase = if is_draining { ", waiting for the last tasks" } else { "" };
    let (elapsed, duration) = (elapsed.as_secs(), duration.as_secs());
    eprint!("\r\x1b[K{elapsed}/{duration} s: {grants} grants, {tasks} tasks, {faults} faults{phase}");
    let _ = std::io::stderr().flush();
}

fn report(history: &History, printer: Printer) -> CommandResult {
    let report = Report::of(history);
    let code = if report.violations == 0 { exit::SUCCESS } else { exit::FAILURE };
    printer.success(&serde_json::to_value(&report).map_err(Failure::internal)?, |_| format!("{report}\n"))?;
    Ok(code)
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Leasehold(error) => error.into(),
        error @ Error::OneProcess(_) => Failure::config(error.to_string())
            .hint("use a store that processes share, such as --store sqlite:torture.db"),
        error => Failure::internal(error),
    }
}
