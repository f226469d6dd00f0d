//! Writer of output: results to stdout as text or JSON, messages to stderr.

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write as _};

use serde::Serialize;

use super::failure::Failure;
use super::program::with_store;
use super::style::Style;
use super::text::is_unsafe;

/// Output settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    /// Whether results are printed as JSON.
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

    /// Writes a result as text, or `value` as JSON.
    pub(crate) fn result(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Style) -> String,
    ) -> Result<(), Failure> {
        let text =
            if self.json { to_pretty(value).map_err(Failure::internal)? + "\n" } else { text(self.style) };
        self.write(text.as_bytes())
    }

    /// Writes the result of a command that has changed something: as [`Self::result`], with
    /// `success` as the first JSON field.
    pub(crate) fn success(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Style) -> String,
    ) -> Result<(), Failure> {
        self.result(&Success { success: true, value }, text)
    }

    /// Writes one of several results, on one line.
    pub(crate) fn line(
        self,
        value: &impl Serialize,
        text: impl FnOnce(Style) -> String,
    ) -> Result<(), Failure> {
        let line = if self.json { to_line(value).map_err(Failure::internal)? } else { text(self.style) };
        self.write((line + "\n").as_bytes())
    }

    /// Writes bytes unchanged.
    #[expect(clippy::unused_self, reason = "all output to stdout goes through the printer")]
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::output)
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

/// Serializes a value to one line, without the line break.
pub(crate) fn to_line(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value).map(escaped)
}

/// Serializes a value to several lines, without the last line break.
pub(super) fn to_pretty(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(escaped)
}

/// Escapes unsafe characters without changing the JSON value. The replaced characters are allowed
/// only inside strings, except for the carriage return, which is allowed only between values: a
/// stored payload may have one there.
fn escaped(json: String) -> String {
    let is_harmless = |c: char| c == '\n' || c == '\t' || !is_unsafe(c);
    if json.chars().all(is_harmless) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '\r' => safe.push(' '),
            c if is_harmless(c) => safe.push(c),
            // All of them are in the Basic Multilingual Plane, so one escape is enough.
            c => _ = write!(safe, "\\u{:04x}", u32::from(c)),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn unsafe_characters_are_escaped_without_changing_the_value() {
        let text = "a\u{9b}31m\u{202e}b\u{2028}c\u{7f}é\n";
        let line = to_line(&text).unwrap();
        assert_eq!(line, "\"a\\u009b31m\\u202eb\\u2028c\\u007fé\\n\"");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        let stored: &RawValue = serde_json::from_str("{\"a\":\r\n\"\u{9b}\"}").unwrap();
        assert_eq!(to_line(&stored).unwrap(), "{\"a\": \n\"\\u009b\"}");
    }
}
