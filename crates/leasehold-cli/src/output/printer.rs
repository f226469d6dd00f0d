//! Writing: results to stdout, talk to stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::failure::Failure;
use super::paint::Paint;

/// Where results and talk go, and for whom they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    /// Results are for programs.
    pub(crate) json: bool,
    /// No talk.
    pub(crate) quiet: bool,
    /// Somebody sits before stderr.
    attended: bool,
    /// For what goes to stdout.
    pub(crate) paint: Paint,
}

impl Printer {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet, attended: io::stderr().is_terminal(), paint: Paint::of(&io::stdout()) }
    }

    /// Writes a result for people, or `value` for programs.
    pub(crate) fn result(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        let text = if self.json { pretty(value)? + "\n" } else { text(self.paint) };
        self.write(text.as_bytes())
    }

    /// Writes one result of many, on one line.
    pub(crate) fn line(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        let line = if self.json {
            serde_json::to_string(value).map_err(Failure::internal)?
        } else {
            text(self.paint)
        };
        self.write((line + "\n").as_bytes())
    }

    /// Writes a result that is not ours to shape.
    #[expect(clippy::unused_self, reason = "whoever writes to stdout goes through the printer")]
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::output)
    }

    /// Advice, which a script does not need.
    pub(crate) fn advise(self, line: impl Display) {
        if self.attended {
            self.say(line);
        }
    }

    /// Talk, for people only.
    pub(crate) fn say(self, line: impl Display) {
        if !self.quiet && !self.json {
            // There is nobody to complain to when stderr is closed.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

fn pretty(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(Failure::internal)
}
