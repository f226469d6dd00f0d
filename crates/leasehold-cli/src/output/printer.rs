//! Writer of output: results to stdout as text or JSON, messages and progress to stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::failure::Failure;
use super::program::with_store;
use super::text::{Style, to_line, to_pretty};
use crate::exit;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    pub(crate) json: bool,
    /// Whether messages are suppressed.
    pub(crate) quiet: bool,
    /// Whether stderr is a terminal.
    is_terminal: bool,
    /// Colour setting of stdout.
    pub(crate) style: Style,
}

impl Printer {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet, is_terminal: io::stderr().is_terminal(), style: Style::of(&io::stdout()) }
    }

    /// Writes a result as text, or `value` as JSON. Returns the exit code of success, as all functions
    /// that write to stdout do.
    pub(crate) fn result(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Style) -> String,
    ) -> Result<i32, Failure> {
        let text =
            if self.json { to_pretty(value).map_err(Failure::internal)? + "\n" } else { text(self.style) };
        self.write(text.as_bytes())
    }

    /// Writes a list of results as a table, or as JSON; an empty list has no table but a message.
    pub(crate) fn list(
        self,
        values: &[impl Serialize],
        empty: &str,
        table: impl FnOnce(Style) -> String,
    ) -> Result<i32, Failure> {
        let code =
            self.result(&values, |style| if values.is_empty() { String::new() } else { table(style) })?;
        if values.is_empty() {
            self.message(empty);
        }
        Ok(code)
    }

    /// Writes the result of a command that has changed something: as [`Self::result`], with
    /// `success` as the first JSON field.
    pub(crate) fn success(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Style) -> String,
    ) -> Result<i32, Failure> {
        self.result(&Success { success: true, value }, text)
    }

    /// Writes one of several results, on one line.
    pub(crate) fn line(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Style) -> String,
    ) -> Result<i32, Failure> {
        let line = if self.json { to_line(value).map_err(Failure::internal)? } else { text(self.style) };
        self.write((line + "\n").as_bytes())
    }

    /// Writes an event on one line, with `--json` only.
    pub(crate) fn event(self, value: &impl Serialize) -> Result<(), Failure> {
        if self.json {
            self.line(value, |_| String::new())?;
        }
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "all output to stdout goes through the printer")]
    pub(crate) fn write(self, bytes: &[u8]) -> Result<i32, Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::output)?;
        Ok(exit::SUCCESS)
    }

    /// Writes advice to stderr, on a terminal only: scripts do not need it.
    pub(crate) fn advise(self, line: impl Display) {
        if self.is_terminal {
            self.message(line);
        }
    }

    /// Writes a message to stderr, unless quiet or with `--json`.
    pub(crate) fn message(self, line: impl Display) {
        if !self.quiet && !self.json {
            let line = line.to_string();
            // If stderr is closed there is no other place to report the error.
            let _ = writeln!(io::stderr(), "{}", with_store(&line));
        }
    }
}

/// JSON object with `success` as its first field.
#[derive(Serialize)]
struct Success<'a, T> {
    success: bool,
    #[serde(flatten)]
    value: &'a T,
}

const WIDTH: u64 = 30;

pub(crate) struct Progress {
    on: bool,
    what: &'static str,
    of: Option<u64>,
    done: u64,
}

impl Progress {
    /// Creates a bar at zero. `of` is the total, if known.
    pub(crate) fn new(printer: Printer, what: &'static str, of: Option<u64>) -> Self {
        let on = !printer.json && !printer.quiet && io::stderr().is_terminal();
        Self { on, what, of, done: 0 }
    }

    pub(crate) fn add(&mut self, more: u64) {
        self.done += more;
        if self.on {
            // If stderr is closed there is no other place to report the error.
            let _ = write!(io::stderr(), "\r\x1b[K{}", self.line());
        }
    }

    fn line(&self) -> String {
        let Self { what, of, done, .. } = self;
        match of {
            Some(of) if of > done => {
                let full = done * WIDTH / of;
                let bar: String = (0..WIDTH).map(|at| if at < full { '█' } else { '░' }).collect();
                format!("{what} {bar} {done}/{of}")
            }
            _ => format!("{what} {done}"),
        }
    }
}

/// Clears the line at the end.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.on && self.done > 0 {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_with_a_known_total_fills_up() {
        let mut progress = Progress { on: false, what: "adding", of: Some(1000), done: 0 };
        progress.add(500);
        assert_eq!(progress.line(), format!("adding {}{} 500/1000", "█".repeat(15), "░".repeat(15)));
        progress.of = None;
        assert_eq!(progress.line(), "adding 500");
    }
}
