//! What all attempts of a worker share.

use std::sync::Arc;

use tokio::sync::watch;

use super::events::WorkEvent;
use super::mouth::Mouth;
use crate::output::{Printer, to_line};

pub(super) struct Shop {
    pub(super) printer: Printer,
    /// Whether the end of an attempt that did not succeed is reported to people. The command that runs one execution reports
    /// its end itself.
    pub(super) says_endings: bool,
    pub(super) stdout: Arc<Mouth>,
    pub(super) stderr: Arc<Mouth>,
    /// Whether somebody cannot wait for the commands to end by themselves.
    pub(super) hurry: watch::Sender<Hurry>,
    pub(super) tally: watch::Sender<Tally>,
}

/// How much of a hurry somebody is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd)]
pub(super) enum Hurry {
    #[default]
    None,
    /// Commands are to stop.
    Stop,
    /// Commands are to be killed, now.
    Kill,
}

/// How many attempts there were.
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

    /// The same, where all output is talk.
    pub(super) fn talking(printer: Printer) -> Self {
        let talk: Arc<Mouth> = Mouth::new(std::io::stderr()).into();
        let (hurry, tally) = (watch::Sender::default(), watch::Sender::default());
        Self { printer, says_endings: true, stdout: talk.clone(), stderr: talk, hurry, tally }
    }

    /// Resolves when somebody is in such a hurry.
    pub(super) async fn hurried(&self, hurry: Hurry) {
        // The sender is our own, so it cannot be gone.
        let _ = self.hurry.subscribe().wait_for(|now| *now >= hurry).await;
    }

    /// Whether somebody is in a hurry.
    pub(super) fn is_hurried(&self) -> bool {
        *self.hurry.borrow() != Hurry::None
    }

    /// Talk about a task, for people.
    pub(super) async fn say(&self, line: String) {
        if !self.printer.quiet && !self.printer.json {
            self.stderr.say(format!("leasehold: {line}\n").into_bytes()).await;
        }
    }

    /// Reports an event, to programs.
    pub(super) async fn report(&self, event: WorkEvent<'_>) {
        if self.printer.json
            && let Ok(line) = to_line(&event)
        {
            self.stdout.say((line + "\n").into_bytes()).await;
        }
    }
}
