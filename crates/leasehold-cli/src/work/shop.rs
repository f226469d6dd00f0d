//! State that all attempts of a worker share.

use std::sync::Arc;

use tokio::sync::watch;

use super::events::WorkEvent;
use super::mouth::Mouth;
use crate::output::{Printer, to_line};

pub(super) struct Shop {
    pub(super) printer: Printer,
    /// Whether the end of an unsuccessful attempt is reported on stderr. The command that runs one
    /// execution reports its end itself.
    pub(super) says_endings: bool,
    pub(super) stdout: Arc<Mouth>,
    pub(super) stderr: Arc<Mouth>,
    /// Current shutdown mode.
    pub(super) hurry: watch::Sender<Hurry>,
    pub(super) tally: watch::Sender<Tally>,
}

/// Shutdown mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd)]
pub(super) enum Hurry {
    #[default]
    None,
    /// Commands are to stop.
    Stop,
    /// Commands are to be killed immediately.
    Kill,
}

/// Number of attempts started and ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) begun: u64,
    pub(super) ended: u64,
}

impl Shop {
    pub(super) fn new(printer: Printer) -> Self {
        let (stdout, stderr) = (Mouth::new(std::io::stdout()).into(), Mouth::new(std::io::stderr()).into());
        let (hurry, tally) = (watch::Sender::default(), watch::Sender::default());
        Self { printer, says_endings: true, stdout, stderr, hurry, tally }
    }

    /// Creates the state for a process that writes all output of commands to stderr.
    pub(super) fn talking(printer: Printer) -> Self {
        let talk: Arc<Mouth> = Mouth::new(std::io::stderr()).into();
        let (hurry, tally) = (watch::Sender::default(), watch::Sender::default());
        Self { printer, says_endings: true, stdout: talk.clone(), stderr: talk, hurry, tally }
    }

    /// Resolves when the shutdown mode is at least `hurry`.
    pub(super) async fn hurried(&self, hurry: Hurry) {
        // The sender is owned by `self`, so the channel cannot be closed.
        let _ = self.hurry.subscribe().wait_for(|now| *now >= hurry).await;
    }

    /// Whether commands are to be stopped or killed.
    pub(super) fn is_hurried(&self) -> bool {
        *self.hurry.borrow() != Hurry::None
    }

    /// Writes a message about a task to stderr, unless quiet or with `--json`.
    pub(super) async fn say(&self, line: String) {
        if !self.printer.quiet && !self.printer.json {
            self.stderr.say(format!("leasehold: {line}\n").into_bytes()).await;
        }
    }

    /// Prints an event, with `--json` only.
    pub(super) async fn report(&self, event: WorkEvent<'_>) {
        if self.printer.json
            && let Ok(line) = to_line(&event)
        {
            self.stdout.say((line + "\n").into_bytes()).await;
        }
    }
}
