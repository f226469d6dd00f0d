//! `torture`: runs processes against a store under faults, and checks what they saw.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use leasehold_torture::history::Reader;
use leasehold_torture::{Checker, Error, Plan, Progress, Report, Session};
use tokio::sync::watch;

use super::context::{CommandResult, block_on, with_code};
use crate::cli::TortureArgs;
use crate::config::StoreChoice;
use crate::exit;
use crate::output::{Failure, Printer};
use crate::work::StopSignals;

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
    let reader = Reader::new(BufReader::new(input)).map_err(unreadable)?;
    let mut checker = Checker::new(reader.header.clone());
    for record in reader {
        checker.push(record.map_err(unreadable)?);
    }
    report(&Report::finish(checker), printer)
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
    let mut record = args.record.as_deref().map(create).transpose()?.map(BufWriter::new);
    let shows_progress = !printer.json && !printer.quiet && std::io::stderr().is_terminal();
    let mut progress = |progress| {
        if shows_progress {
            show(progress, plan.duration);
        }
    };
    block_on(async {
        let (stop, stops) = watch::channel(0);
        let mut signals = StopSignals::listen().map_err(Failure::internal)?;
        let mut last_signal = None;
        let session = Session {
            record: record.as_mut().map(|file| file as &mut dyn Write),
            progress: &mut progress,
            stops,
        };
        let run = leasehold_torture::run(&plan, session);
        tokio::pin!(run);
        let result = loop {
            tokio::select! {
                result = &mut run => break result,
                signal = signals.next() => {
                    last_signal = Some(signal);
                    stop.send_modify(|stops| *stops += 1);
                    if *stop.borrow() == 1 {
                        printer.message("ending the run; a second signal ends it at once");
                    }
                }
            }
        };
        if shows_progress {
            eprint!("\r\x1b[K");
        }
        let interrupted = last_signal.map(|signal| exit::SIGNAL_BASE + signal);
        let report = match (result, interrupted, &args.record) {
            (Err(Error::Interrupted), Some(code), _) => return Ok(code),
            (Err(Error::Record(error)), _, Some(path)) => return Err(unwritable(path, &error)),
            (result, ..) => result.map_err(failure)?,
        };
        let code = self::report(&report, printer)?;
        Ok(interrupted.filter(|_| code == exit::SUCCESS).unwrap_or(code))
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

fn report(report: &Report, printer: Printer) -> CommandResult {
    let code = if report.fit { exit::SUCCESS } else { exit::FAILURE };
    let value = serde_json::to_value(report).map_err(Failure::internal)?;
    with_code(printer.success(&value, |_| format!("{report}\n")), code)
}

pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::Leasehold(error) => error.into(),
        error @ Error::OneProcess(_) => Failure::config(error.to_string())
            .hint("use a store that processes share, such as --store sqlite:torture.db"),
        error => Failure::internal(error),
    }
}
