//! Shared state of the attempts of a worker: output, shutdown mode, counts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::Tasks;
use leasehold::client::OutputRecorder;
use leasehold::model::Task;
use tokio::sync::watch;

use super::output::WorkEvent;
use crate::output::{OutputWriter, Printer, accepts_output, to_line};
use crate::wait::{WaitDisplay, is_own_terminal};

/// Number of bytes of the output of an attempt that are kept in the store by default.
pub(crate) const KEPT_OUTPUT: usize = 64 << 10;

/// Maximum time for the last output after commands were ended.
pub(super) const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct WorkerContext {
    pub(super) printer: Printer,
    /// Whether the end of an unsuccessful attempt is reported on stderr. The command that runs one
    /// execution reports its end itself.
    pub(super) reports_failures: bool,
    /// Whether each line of output begins with the id of its task.
    pub(super) prefixes: bool,
    /// Line of an idle worker on a terminal.
    live: Mutex<WaitDisplay>,
    pub(super) stdout: Arc<OutputWriter>,
    pub(super) stderr: Arc<OutputWriter>,
    pub(super) shutdown: watch::Sender<ShutdownMode>,
    pub(super) counts: watch::Sender<AttemptCounts>,
    /// Store in which the output of commands is kept, and the number of bytes for each attempt.
    pub(super) keeps_output: Option<(Tasks, usize)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd)]
pub(super) enum ShutdownMode {
    #[default]
    None,
    Stop,
    Kill,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AttemptCounts {
    pub(super) started: u64,
    pub(super) ended: u64,
    /// Number of attempts after which the task has failed for good.
    pub(super) failed: u64,
    /// Number of tasks that were returned because this worker must not run them.
    pub(super) returned: u64,
}

impl WorkerContext {
    pub(super) fn new(printer: Printer) -> Self {
        Self { stdout: OutputWriter::new(std::io::stdout()).into(), ..Self::to_stderr(printer) }
    }

    /// Creates the state for a process that writes all output of commands to stderr.
    pub(super) fn to_stderr(printer: Printer) -> Self {
        let stderr: Arc<OutputWriter> = OutputWriter::new(std::io::stderr()).into();
        let (shutdown, counts) = (watch::Sender::default(), watch::Sender::default());
        let live = Mutex::new(WaitDisplay::of_command(printer));
        Self {
            printer,
            reports_failures: true,
            prefixes: false,
            live,
            stdout: stderr.clone(),
            stderr,
            shutdown,
            counts,
            keeps_output: None,
        }
    }

    pub(super) async fn wait_for_shutdown(&self, mode: ShutdownMode) {
        // The sender is owned by `self`, so the channel cannot be closed.
        let _ = self.shutdown.subscribe().wait_for(|current| *current >= mode).await;
    }

    /// Keeps the last `limit` bytes of the output of each attempt in the store of these tasks.
    pub(super) fn keep_output(mut self, tasks: Tasks, limit: usize) -> Self {
        self.keeps_output = (limit > 0).then_some((tasks, limit));
        self
    }

    pub(super) fn record_output(&self, task: &Task) -> Option<Arc<OutputRecorder>> {
        let (tasks, limit) = self.keeps_output.as_ref()?;
        tasks.record_output(task, *limit).map(Arc::new)
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.shutdown.borrow() != ShutdownMode::None
    }

    pub(super) fn is_idle(&self) -> bool {
        let counts = self.counts.borrow();
        counts.started == counts.ended
    }

    /// Whether a line can be drawn on the terminal now.
    pub(super) fn can_draw(&self) -> bool {
        !self.printer.quiet && !self.printer.json && is_own_terminal() && accepts_output()
    }

    /// Draws a line, unless a task has started in the meantime.
    pub(super) fn draw_if_idle(&self, text: &str) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_idle() {
            live.write_live(text);
        }
    }

    /// Removes the line of an idle worker. Called when an attempt has been counted, before it writes.
    pub(super) fn clear_live(&self) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Writes advice about a task to stderr, on a terminal only.
    pub(super) async fn advise(&self, line: String) {
        if self.printer.advises() {
            self.message(line).await;
        }
    }

    /// Writes a message about a task to stderr, unless quiet or with `--json`.
    pub(super) async fn message(&self, line: String) {
        if let Some(line) = self.message_line(&line) {
            self.write(&self.stderr, line).await;
        }
    }

    /// Writes a message to stderr without waiting for its reader: if the reader is slow, the message is dropped.
    pub(super) fn try_message(&self, line: &str) {
        if let Some(line) = self.message_line(line) {
            self.stderr.try_write(line);
        }
    }

    /// Writes advice like [`try_message`](Self::try_message), on a terminal only.
    pub(super) fn try_advise(&self, line: &str) {
        if self.printer.advises() {
            self.try_message(line);
        }
    }

    fn message_line(&self, line: &str) -> Option<Vec<u8>> {
        self.clear_live();
        let is_shown = !self.printer.quiet && !self.printer.json;
        is_shown.then(|| format!("leasehold: {line}\n").into_bytes())
    }

    /// Waits for a slow reader, until the commands are killed: their tasks are settled then.
    async fn write(&self, to: &OutputWriter, line: Vec<u8>) {
        tokio::select! {
            biased;
            () = to.write(line) => {}
            () = self.wait_for_shutdown(ShutdownMode::Kill) => {}
        }
    }

    /// Waits until all output has been written; at most a moment longer once `limit` has resolved or the
    /// commands are killed.
    pub(super) async fn close_output(&self, limit: impl Future<Output = ()>) {
        let written = async {
            self.stdout.close().await;
            self.stderr.close().await;
        };
        let given_up = async {
            tokio::select! {
                () = self.wait_for_shutdown(ShutdownMode::Kill) => {}
                () = limit => {}
            }
            tokio::time::sleep(LAST_OUTPUT_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            () = written => {}
            () = given_up => {}
        }
    }

    /// Prints an event, with `--json` only.
    pub(super) async fn report(&self, event: WorkEvent<'_>) {
        if self.printer.json
            && let Ok(line) = to_line(&event)
        {
            self.write(&self.stdout, (line + "\n").into_bytes()).await;
        }
    }
}
