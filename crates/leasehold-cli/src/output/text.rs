//! Formatting for sentences: names, numbers, blocks and styles; and values as JSON.

use std::fmt::{Display, Write as _};
use std::io::IsTerminal;

use clap::builder::styling::{self, AnsiColor};
use serde::Serialize;

/// Whether a character could move the cursor, start a control sequence, break a line or change the direction
/// of the text: control characters (C0, C1 and DEL), line separators and bidirectional controls.
pub(crate) fn is_unsafe(c: char) -> bool {
    let breaks_or_turns = matches!(c, '\u{2028}' | '\u{2029}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || breaks_or_turns
}

/// Escapes text of another program or person, so that it stays on one line and cannot change the terminal.
pub(crate) fn visible(text: &str) -> String {
    let mut seen = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            seen.extend(c.escape_default());
        } else {
            seen.push(c);
        }
    }
    seen
}

/// Escapes the text as [`visible`] does; if it has more characters than `most`, `end` replaces the rest.
fn cut(text: &str, most: usize, end: &str) -> String {
    let text = visible(text);
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}{end}", &text[..at]),
        None => text,
    }
}

/// Maximum length of a note in a row, in characters.
const NOTE_CHARS: usize = 60;
/// Maximum length of a payload or a result on a page, in characters.
const JSON_CHARS: usize = 2000;

pub(super) fn note_cell(text: &str) -> String {
    cut(text, NOTE_CHARS, "…")
}

pub(super) fn json_value(text: &str) -> String {
    cut(text, JSON_CHARS, "… (all of it with --json)")
}

/// Joins lines, each with a line break.
pub(crate) fn lines(lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().flat_map(|line| [line, "\n".to_owned()]).collect()
}

/// Returns a number with its noun: `1 lease`, `2 leases`.
pub(crate) fn count(number: u64, word: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {word}{end}")
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

/// Space that a table may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// For programs and files: a fixed set of columns, never cut.
    Plain,
    /// For a terminal with this number of columns.
    Fit(usize),
    /// Every column, never cut.
    Wide,
}

/// Presentation of one stream: its colours, and the space for tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    on: bool,
    layout: Layout,
}

impl Style {
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self::plain_as(Layout::Plain);

    #[cfg(test)]
    pub(crate) const fn plain_as(layout: Layout) -> Self {
        Self { on: false, layout }
    }

    /// Returns the presentation for this stream, with tables for programs.
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: stream.is_terminal() && !set("NO_COLOR") && !dumb, layout: Layout::Plain }
    }

    pub(crate) const fn with_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    pub(crate) const fn layout(self) -> Layout {
        self.layout
    }

    pub(crate) const fn is_on(self) -> bool {
        self.on
    }

    pub(crate) fn bold(self, text: impl Display) -> String {
        self.with(styling::Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: impl Display) -> String {
        self.with(styling::Style::new().dimmed(), text)
    }

    pub(crate) fn good(self, text: impl Display) -> String {
        self.with(AnsiColor::Green.on_default(), text)
    }

    pub(crate) fn warning(self, text: impl Display) -> String {
        self.with(AnsiColor::Yellow.on_default(), text)
    }

    pub(crate) fn bad(self, text: impl Display) -> String {
        self.with(AnsiColor::Red.on_default().bold(), text)
    }

    fn with(self, style: styling::Style, text: impl Display) -> String {
        if self.on { format!("{style}{text}{style:#}") } else { text.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(visible("Ünïcödé 名前"), "Ünïcödé 名前");
        assert_eq!(visible("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(visible("a\u{202e}b"), "a\\u{202e}b");
    }

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
