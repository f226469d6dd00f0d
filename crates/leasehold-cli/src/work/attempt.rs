//! One attempt at a task: runs the command until it ends by itself or is stopped, with its payload as a
//! file, and a pipe for its progress.

use std::convert::Infallible;
use std::fs::{self, OpenOptions};
use std::io::{self, PipeReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::client::OutputRecorder;
use leasehold::model::{ExecutionId, MAX_PAYLOAD, Payload, Progress, Task};
use leasehold::{BootInstant, HandlerError, TaskContext};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::context::{LAST_OUTPUT_TIMEOUT, ShutdownMode, WorkerContext};
use super::outcome::{MAX_STDERR, Outcome};
use super::output::{Captured, Ending, LineFormat, LineWriter, OutputReader, Stream, Subject, WorkEvent};
use crate::output::{OutputWriter, short};
use crate::run::{AttemptEnd, Launched, Launcher, MonitorHandle};

/// Number of characters of the id before each line of output.
const PREFIX_CHARS: usize = 8;

/// Runs the command for the task. If the worker is to run one execution `only`, returns every other one: its runner
/// has a command of its own.
pub(super) async fn attempt(
    context: Arc<WorkerContext>,
    launcher: Arc<Launcher>,
    only: Option<ExecutionId>,
    running: TaskContext<Payload>,
) -> Result<Option<Payload>, HandlerError> {
    if only.is_some() && running.execution() != only {
        context.counts.send_modify(|counts| counts.returned += 1);
        return Err(HandlerError::returned());
    }
    context.counts.send_modify(|counts| counts.started += 1);
    context.clear_live();
    let began = BootInstant::now();
    let of = Subject::new(running.task());
    // On a terminal the id is as short as in lists; a log has the whole one.
    let id = if context.printer.advises() { short_id(running.task()) } else { running.task().id.short() };
    let name = format!("task {id} of '{}', attempt {}", running.task().queue, running.task().attempt);
    let announce = async {
        if context.reports_failures {
            context.advise(format!("{name}: started")).await;
        }
        context.report(WorkEvent::Started { of: &of, token: running.task().token.get() }).await;
    };
    unless_given_up(&context, &running, announce).await;
    let format = if context.printer.json {
        LineFormat::Json(of.clone())
    } else if context.prefixes {
        LineFormat::Prefixed(format!("{} | ", short_id(running.task())))
    } else {
        LineFormat::Raw
    };
    let outcome = if has_to_stop(&context, &running).await {
        // The stop was requested while this attempt waited for the reader of the output.
        stopped(&context, &running)
    } else {
        let launch = launcher.launch(running.task(), running.lock_token(), running.valid_until());
        outcome(&context, &running, launch, &format).await
    };
    let gave_up = outcome.ending == Ending::Failed && !outcome.will_retry;
    let announce = async {
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
        match outcome.error.as_ref() {
            _ if !context.reports_failures => {}
            Some(error) => {
                let next = next_attempt(running.task(), &outcome);
                context.message(format!("{name}: {error}{next}")).await;
            }
            None => {
                let after = short(BootInstant::now().after(began));
                context.advise(format!("{name}: succeeded after {after}")).await;
            }
        }
    };
    unless_given_up(&context, &running, announce).await;
    context.counts.send_modify(|counts| {
        counts.ended += 1;
        counts.failed += u64::from(gave_up);
    });
    outcome.result
}

/// Returns the last characters of the id, as in lists.
fn short_id(task: &Task) -> String {
    let id = task.id.short();
    let at = if task.id.number().is_some() { 0 } else { id.len().saturating_sub(PREFIX_CHARS) };
    id[at..].to_owned()
}

/// Returns what follows on an attempt that did not succeed.
fn next_attempt(task: &Task, outcome: &Outcome) -> String {
    match (outcome.ending, outcome.will_retry) {
        (Ending::Failed, true) => {
            let pause = Duration::from_micros(task.retries.pause(task.id, task.attempt));
            format!("; it will be retried in {}", short(pause))
        }
        (Ending::Failed, false) if task.attempt >= task.retries.attempts => {
            format!("; given up after {} of {} attempts", task.attempt, task.retries.attempts)
        }
        (Ending::Snoozed, _) => {
            format!("; it will run again in {}", short(task.retries.initial_delay.as_duration()))
        }
        _ => String::new(),
    }
}

/// Launches a command, and returns its outcome when no process of it is alive. Its lines are forwarded in this format.
pub(super) async fn outcome<W>(
    context: &WorkerContext,
    running: &TaskContext<W>,
    launch: impl Future<Output = io::Result<Launched>>,
    format: &LineFormat,
) -> Outcome {
    let launched = tokio::select! {
        biased;
        launched = launch => launched,
        // The monitor has not read all that it needs to start the command, and exits when it finds the link closed.
        () = stop_requested(context, running) => return stopped(context, running),
    };
    let recorder = context.record_output(running.task());
    match launched.and_then(|launched| read_output(context, launched, format, recorder.as_ref())) {
        Ok((monitor, progress, out, error)) => {
            let end = tokio::select! {
                end = supervise(context, running, monitor, progress) => end,
                never = record(recorder.as_deref()) => match never {},
            };
            let (out, error) = tokio::join!(
                out.finish(output_given_up(context, running)),
                error.finish(output_given_up(context, running)),
            );
            if let Some(recorder) = recorder {
                recorder.finish().await;
            }
            outcome_of(end, context, running, out, error)
        }
        Err(error) => Outcome::not_started(running.task(), &error),
    }
}

/// Returns the outcome of a command that was not started because the attempt has to stop.
fn stopped<W>(context: &WorkerContext, running: &TaskContext<W>) -> Outcome {
    outcome_of(AttemptEnd::Stopped, context, running, Captured::first(0), Captured::last(0))
}

fn outcome_of<W>(
    end: AttemptEnd,
    context: &WorkerContext,
    running: &TaskContext<W>,
    out: Captured,
    error: Captured,
) -> Outcome {
    let outcome = Outcome::new(end, running.task(), context.is_stopping(), out, error);
    if running.is_overdue() { outcome.timed_out(running.task()) } else { outcome }
}

/// Writes the output of a running command to the store from time to time.
async fn record(recorder: Option<&OutputRecorder>) -> Infallible {
    match recorder {
        Some(recorder) => recorder.run().await,
        None => std::future::pending().await,
    }
}

/// Starts to read the streams of a command.
fn read_output(
    context: &WorkerContext,
    launched: Launched,
    format: &LineFormat,
    recorder: Option<&Arc<OutputRecorder>>,
) -> io::Result<(MonitorHandle, ProgressPipe, OutputReader, OutputReader)> {
    let Launched { monitor, stdout, stderr, progress } = launched;
    // With JSON, all events go to one stream, in the order in which the command wrote.
    let for_errors = if matches!(format, LineFormat::Json(_)) { &context.stdout } else { &context.stderr };
    let writer = |to: &Arc<OutputWriter>, stream| {
        let (to, format, recorder) = (to.clone(), format.clone(), recorder.cloned());
        LineWriter { to, format, stream, recorder }
    };
    let to_stdout = writer(&context.stdout, Stream::Stdout);
    let to_stderr = writer(for_errors, Stream::Stderr);
    let out = OutputReader::new(stdout, to_stdout, Captured::first(MAX_PAYLOAD))?;
    let error = OutputReader::new(stderr, to_stderr, Captured::last(MAX_STDERR))?;
    Ok((monitor, ProgressPipe::new(progress)?, out, error))
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

/// Returns whether [`stop_requested`] has resolved.
async fn has_to_stop<W>(context: &WorkerContext, running: &TaskContext<W>) -> bool {
    tokio::select! {
        biased;
        () = stop_requested(context, running) => true,
        () = std::future::ready(()) => false,
    }
}

/// Resolves when the reader of the output is not waited for any more: the commands are killed, or this attempt
/// had to stop a moment ago. The task is settled then, and its lock released.
async fn output_given_up<W>(context: &WorkerContext, running: &TaskContext<W>) {
    let stopped = async {
        stop_requested(context, running).await;
        tokio::time::sleep(LAST_OUTPUT_TIMEOUT).await;
    };
    tokio::select! {
        () = context.wait_for_shutdown(ShutdownMode::Kill) => {}
        () = stopped => {}
    }
}

/// Runs `write`, which waits for the reader of the output, until [`output_given_up`] resolves.
pub(super) async fn unless_given_up<W>(
    context: &WorkerContext,
    running: &TaskContext<W>,
    write: impl Future<Output = ()>,
) {
    tokio::select! {
        biased;
        () = write => {}
        () = output_given_up(context, running) => {}
    }
}

/// Folder with access for this user only; removed when this process stops running executions.
pub(super) struct PayloadFolder(PathBuf);

/// Payload file; removed on drop.
pub(super) struct PayloadFile(PathBuf);

impl PayloadFolder {
    pub(super) fn new() -> io::Result<Self> {
        let path = nix::unistd::mkdtemp(&std::env::temp_dir().join("leasehold-XXXXXX"))?;
        Ok(Self(path))
    }

    pub(super) fn put(&self, id: ExecutionId, payload: &[u8]) -> io::Result<PayloadFile> {
        let path = self.0.join(id.to_string());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let file_of = PayloadFile(path);
        file.write_all(payload)?;
        Ok(file_of)
    }
}

impl PayloadFile {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PayloadFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for PayloadFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Maximum length of a line; a longer one is discarded as invalid.
const MAX_LINE: usize = 16 << 10;

struct ProgressPipe {
    /// Pipe to the command; `None` once it has ended.
    pipe: Option<pipe::Receiver>,
    text: Vec<u8>,
}

impl ProgressPipe {
    pub(super) fn new(pipe: PipeReader) -> io::Result<Self> {
        let pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(pipe))?;
        Ok(Self { pipe: Some(pipe), text: Vec::new() })
    }

    /// Returns the next report; invalid lines are skipped. Cancel safe.
    pub(super) async fn next(&mut self) -> Progress {
        loop {
            if let Some(progress) = take(&mut self.text) {
                return progress;
            }
            let Some(pipe) = &mut self.pipe else { return std::future::pending().await };
            if !matches!(pipe.read_buf(&mut self.text).await, Ok(1..)) {
                self.pipe = None;
            }
        }
    }
}

/// Consumes whole lines until one of them is a report.
fn take(text: &mut Vec<u8>) -> Option<Progress> {
    while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = text.drain(..=end).collect();
        if let Ok(progress) = serde_json::from_slice(&line) {
            return Some(progress);
        }
    }
    if text.len() > MAX_LINE {
        text.clear();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use leasehold::model::TaskId;

    use super::*;

    #[test]
    fn a_payload_file_is_private_and_removed_with_its_owner() {
        let folder = PayloadFolder::new().unwrap();
        let id = "00000000-0000-0000-0000-000000000005".parse::<TaskId>().unwrap().into();
        let file = folder.put(id, b"secret").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(file.path()), mode(&folder.0)), (0o600, 0o700));
        assert_eq!(fs::read(file.path()).unwrap(), b"secret");
        assert!(folder.put(id, b"other").is_err(), "one is there");
        let (file_path, folder_path) = (file.path().to_owned(), folder.0.clone());
        drop(file);
        assert!(!file_path.exists());
        drop(folder);
        assert!(!folder_path.exists());
    }

    #[test]
    fn invalid_lines_are_skipped() {
        let mut text = b"oops\n{\"done\":4,\"of\":10}\n{\"done\":5".to_vec();
        assert_eq!(take(&mut text), Some(Progress::of(4, 10)));
        assert_eq!(take(&mut text), None);
        text.extend_from_slice(b"}\n");
        assert_eq!(take(&mut text).map(|progress| progress.done), Some(5));
    }
}
