//! One attempt at a task: runs the command until it ends by itself or is stopped.

use std::io;
use std::sync::Arc;

use leasehold::model::Payload;
use leasehold::{HandlerError, TaskContext};

use super::context::{AttemptCounts, ShutdownMode, WorkerContext};
use super::events::{Ending, Stream, Subject, WorkEvent};
use super::outcome::{self, Outcome};
use super::output::{Captured, LineFormat, LineWriter, OutputReader};
use super::progress_pipe::ProgressPipe;
use crate::run::{AttemptEnd, Launched, Launcher, MonitorHandle};

pub(super) async fn attempt(
    context: Arc<WorkerContext>,
    launcher: Arc<Launcher>,
    running: TaskContext<Payload>,
) -> Result<Option<Payload>, HandlerError> {
    count(&context, |counts| counts.started += 1);
    let of = Subject::new(running.task());
    context.report(WorkEvent::Started { of: &of, token: running.task().token.get() }).await;
    let outcome = run(&context, &launcher, &running, &of).await;
    context
        .report(WorkEvent::Ended {
            of: &of,
            success: outcome.ending == Ending::Succeeded,
            outcome: outcome.ending,
            will_retry: outcome.will_retry,
            result: outcome.result.as_ref().ok().and_then(Option::as_ref),
            error: outcome.error.as_deref(),
        })
        .await;
    if let Some(error) = outcome.error.as_ref().filter(|_| context.reports_failures) {
        let task = running.task();
        let (id, queue, attempt) = (task.id.short(), &task.queue, task.attempt);
        let reason = if running.is_overdue() { ": it reached its --max-runtime" } else { "" };
        context.message(format!("task {id} of '{queue}', attempt {attempt}: {error}{reason}")).await;
    }
    count(&context, |counts| counts.ended += 1);
    outcome.result
}

fn count(context: &WorkerContext, change: impl FnOnce(&mut AttemptCounts)) {
    context.counts.send_modify(change);
}

async fn run(
    context: &Arc<WorkerContext>,
    launcher: &Launcher,
    running: &TaskContext<Payload>,
    of: &Subject,
) -> Outcome {
    let started = launcher.launch(running.task(), running.lock_token(), running.valid_until()).await;
    let format = if context.printer.json { LineFormat::Json(of.clone()) } else { LineFormat::Raw };
    match read_output(context, started, &format) {
        Ok(command) => {
            let (end, out, error) = command.wait(context, running).await;
            Outcome::new(end, running.task(), context.is_stopping(), out, error)
        }
        Err(error) => Outcome::not_started(running.task(), &error),
    }
}

/// Running command whose output and progress are read.
pub(super) struct RunningCommand {
    monitor: MonitorHandle,
    out: OutputReader,
    error: OutputReader,
    progress: ProgressPipe,
}

/// Starts to read the streams of a command. Its lines are forwarded in this format.
pub(super) fn read_output(
    context: &WorkerContext,
    launched: io::Result<Launched>,
    format: &LineFormat,
) -> io::Result<RunningCommand> {
    let Launched { monitor, stdout, stderr, progress } = launched?;
    // With JSON, all events go to one stream, in the order in which the command wrote.
    let for_errors = if matches!(format, LineFormat::Json(_)) { &context.stdout } else { &context.stderr };
    let to_stdout = LineWriter { to: context.stdout.clone(), format: format.clone(), stream: Stream::Stdout };
    let to_stderr = LineWriter { to: for_errors.clone(), format: format.clone(), stream: Stream::Stderr };
    let out = OutputReader::new(stdout, to_stdout, outcome::capture_stdout())?;
    let error = OutputReader::new(stderr, to_stderr, outcome::capture_stderr())?;
    Ok(RunningCommand { monitor, out, error, progress: ProgressPipe::new(progress)? })
}

impl RunningCommand {
    /// Waits until no process of the command is alive. Returns how it ended, and the captured parts
    /// of its stdout and stderr.
    pub(super) async fn wait<W>(
        self,
        context: &WorkerContext,
        running: &TaskContext<W>,
    ) -> (AttemptEnd, Captured, Captured) {
        let end = supervise(context, running, self.monitor, self.progress).await;
        let (out, error) = tokio::join!(self.out.finish(context), self.error.finish(context));
        (end, out, error)
    }
}

/// Forwards renewals and stop requests to the monitor, until no process of the command is alive.
async fn supervise<W>(
    context: &WorkerContext,
    running: &TaskContext<W>,
    mut monitor: MonitorHandle,
    mut progress: ProgressPipe,
) -> AttemptEnd {
    let mut until = running.valid_until();
    monitor.renewed(until);
    let (mut stopped, mut killed) = (false, false);
    loop {
        tokio::select! {
            end = monitor.end() => return end,
            now = running.renewed(until) => {
                until = now;
                monitor.renewed(until);
            }
            progress = progress.next() => running.progress(progress),
            () = stop_requested(context, running), if !stopped => {
                stopped = true;
                monitor.stop();
            }
            () = context.wait_for_shutdown(ShutdownMode::Kill), if !killed => {
                killed = true;
                monitor.kill();
            }
        }
    }
}

/// Resolves when the lease is lost, the task is to be stopped, or the worker shuts down.
async fn stop_requested<W>(context: &WorkerContext, running: &TaskContext<W>) {
    tokio::select! {
        () = running.lost() => {}
        () = context.wait_for_shutdown(ShutdownMode::Stop) => {}
    }
}
