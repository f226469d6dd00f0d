//! Writer of output: results to stdout as text or JSON, messages and progress to stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::model::format_duration;
use serde::Serialize;
use terminal_size::{Height, Width, terminal_size_of};

use super::failure::Failure;
use super::hints::with_store;
use super::table::cut_to_width;
use super::text::{Layout, Style, lines, to_line, to_pretty};
use super::writer::{write_if_read, write_message};
use crate::exit;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    pub(crate) json: bool,
    /// Whether messages are suppressed.
    pub(crate) quiet: bool,
    /// Whether stderr is a terminal.
    is_terminal: bool,
    /// Presentation of stdout.
    pub(crate) style: Style,
    format: ListFormat,
    /// Interval at which a list is shown again.
    repeats: Option<Duration>,
}

/// Format of a list that is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListFormat {
    /// Columns that fit.
    Table,
    /// All columns.
    Wide,
    /// Names or ids only.
    Names,
}

/// List of results, and what is said if it is empty or cut.
pub(crate) struct List<'a, T, N, F> {
    pub(crate) values: &'a [T],
    /// Returns the name or id of a value.
    pub(crate) name: N,
    pub(crate) empty: &'a str,
    /// Message if there are more values than these.
    pub(crate) more: Option<&'a str>,
    pub(crate) table: F,
}

/// Number of lines of the list that is on the terminal, and replaced by the next one.
static SHOWN_LINES: AtomicUsize = AtomicUsize::new(0);

impl Printer {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let printer = Self {
            json,
            quiet,
            is_terminal: io::stderr().is_terminal(),
            style: Style::of(&io::stdout()),
            format: ListFormat::Table,
            repeats: None,
        };
        printer.fitted()
    }

    pub(crate) fn for_list(self, format: ListFormat, repeats: Option<Duration>) -> Self {
        Self { format, repeats, ..self }.fitted()
    }

    /// Returns the printer with the current width of the terminal.
    pub(crate) fn fitted(self) -> Self {
        let layout = match terminal_size_of(io::stdout()) {
            _ if self.format == ListFormat::Wide => Layout::Wide,
            Some((Width(columns), _)) if columns > 0 => Layout::Fit(columns.into()),
            _ => Layout::Plain,
        };
        Self { style: self.style.with_layout(layout), ..self }
    }

    pub(crate) const fn repeats(self) -> Option<Duration> {
        self.repeats
    }

    /// Whether stdout is a terminal, and not JSON.
    pub(crate) fn is_for_people(self) -> bool {
        !self.json && io::stdout().is_terminal()
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

    /// Writes a list of results as a table, as names or as JSON; an empty list has no table but a message.
    pub(crate) fn list<T: Serialize>(
        self,
        list: List<'_, T, impl Fn(&T) -> String, impl FnOnce(Style) -> String>,
    ) -> Result<i32, Failure> {
        let List { values, name, empty, more, table } = list;
        if self.json {
            return if self.repeats.is_some() {
                self.line(&values, |_| String::new())
            } else {
                self.result(&values, |_| String::new())
            };
        }
        let text = match values {
            [] => String::new(),
            _ if self.format == ListFormat::Names => lines(values.iter().map(name)),
            _ => table(self.style),
        };
        let note = if values.is_empty() { Some(empty) } else { more };
        if let (Some(interval), true) = (self.repeats, io::stdout().is_terminal()) {
            return self.write(self.frame(&text, note, interval).as_bytes());
        }
        self.write(text.as_bytes())?;
        if let Some(note) = note {
            self.message(note);
        }
        Ok(exit::SUCCESS)
    }

    /// Returns the text that replaces the list that is on the terminal, cut to the size of the terminal.
    fn frame(self, text: &str, note: Option<&str>, interval: Duration) -> String {
        let (width, height) = terminal_size_of(io::stdout())
            .map_or((80, 24), |(Width(width), Height(height))| (usize::from(width), usize::from(height)));
        let note = note.filter(|_| !self.quiet).map(str::to_owned);
        let end = format!("every {}; press Ctrl-C to stop", format_duration(interval));
        // One line stays free for the cursor.
        let room = height.saturating_sub(2 + usize::from(note.is_some())).max(1);
        let mut shown: Vec<String> = text.lines().map(str::to_owned).collect();
        if shown.len() > room {
            let hidden = shown.len() - room + 1;
            shown.truncate(room - 1);
            shown.push(self.style.dim(format!("… {hidden} more lines")));
        }
        shown.extend(note.map(|note| cut_to_width(&note, width)));
        shown.push(self.style.dim(cut_to_width(&end, width)));
        let before = SHOWN_LINES.swap(shown.len(), Ordering::Relaxed);
        let up = if before > 0 { format!("\x1b[{before}A\r") } else { String::new() };
        up + "\x1b[J" + &lines(shown)
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

    /// Like [`Self::success`], for a command whose repetition would have its effect a second time.
    pub(crate) fn unrepeatable(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Style) -> String,
    ) -> Result<i32, Failure> {
        self.success(value, text).map_err(Failure::after_success)
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

    /// Whether advice is written.
    pub(crate) const fn advises(self) -> bool {
        self.is_terminal
    }

    /// Writes advice to stderr, on a terminal only: scripts do not need it.
    pub(crate) fn advise(self, line: impl Display) {
        if self.is_terminal {
            self.message(line);
        }
    }

    /// Writes a message to stderr, unless quiet or with `--json`.
    pub(crate) fn message(self, line: impl Display) {
        write_message(self.message_text(line).as_bytes());
    }

    /// Writes a message as [`Self::message`] does, unless stderr is not read: for processes that must end in time.
    pub(crate) fn message_if_read(self, line: impl Display) {
        write_if_read(self.message_text(line).as_bytes());
    }

    /// Returns what [`Self::message`] writes.
    pub(crate) fn message_text(self, line: impl Display) -> String {
        if self.quiet || self.json {
            return String::new();
        }
        format!("{}\n", with_store(&line.to_string()))
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
