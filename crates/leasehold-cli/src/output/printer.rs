//! Writing: results to stdout, talk to stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::failure::Failure;
use super::json;
use super::paint::Paint;
use super::program::with_store;

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
        let text = if self.json {
            json::to_pretty(value).map_err(Failure::internal)? + "\n"
        } else {
            text(self.paint)
        };
        self.write(text.as_bytes())
    }

    /// Writes the answer of a command that has done something: for programs the same with `success` before it.
    pub(crate) fn done(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        self.result(&Done { success: true, value }, text)
    }

    /// Writes one result of many, on one line.
    pub(crate) fn line(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        let line =
            if self.json { json::to_line(value).map_err(Failure::internal)? } else { text(self.paint) };
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
            let line = line.to_string();
            // There is nobody to complain to when stderr is closed.
            let _ = writeln!(io::stderr(), "{}", with_store(&line));
        }
    }
}

/// An object with `success` as its first field.
#[derive(Serialize)]
struct Done<'a, T> {
    success: bool,
    #[serde(flatten)]
    value: &'a T,
}
