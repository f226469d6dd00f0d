//! Writer of output: results to stdout, messages to stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::failure::Failure;
use super::json;
use super::paint::Paint;
use super::program::with_store;

/// Output settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    /// Whether results are printed as JSON.
    pub(crate) json: bool,
    /// Whether messages are suppressed.
    pub(crate) quiet: bool,
    /// Whether stderr is a terminal.
    attended: bool,
    /// Colour setting of stdout.
    pub(crate) paint: Paint,
}

impl Printer {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet, attended: io::stderr().is_terminal(), paint: Paint::of(&io::stdout()) }
    }

    /// Writes a result as text, or `value` as JSON.
    pub(crate) fn result(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        let text = if self.json {
            json::to_pretty(value).map_err(Failure::internal)? + "\n"
        } else {
            text(self.paint)
        };
        self.write(text.as_bytes())
    }

    /// Writes the result of a command that has changed something: as [`Self::result`], with
    /// `success` as the first JSON field.
    pub(crate) fn done(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        self.result(&Done { success: true, value }, text)
    }

    /// Writes one of several results, on one line.
    pub(crate) fn line(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        let line =
            if self.json { json::to_line(value).map_err(Failure::internal)? } else { text(self.paint) };
        self.write((line + "\n").as_bytes())
    }

    /// Writes bytes unchanged.
    #[expect(clippy::unused_self, reason = "whoever writes to stdout goes through the printer")]
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::output)
    }

    /// Writes advice to stderr, on a terminal only: scripts do not need it.
    pub(crate) fn advise(self, line: impl Display) {
        if self.attended {
            self.say(line);
        }
    }

    /// Writes a message to stderr, unless quiet or with `--json`.
    pub(crate) fn say(self, line: impl Display) {
        if !self.quiet && !self.json {
            let line = line.to_string();
            // If stderr is closed there is no other place to report the error.
            let _ = writeln!(io::stderr(), "{}", with_store(&line));
        }
    }
}

/// JSON object with `success` as its first field.
#[derive(Serialize)]
struct Done<'a, T> {
    success: bool,
    #[serde(flatten)]
    value: &'a T,
}
