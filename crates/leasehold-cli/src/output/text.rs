//! Formatting for sentences and tables: durations, times, names, styles and columns; and values as JSON.

use std::fmt::{Display, Write as _};
use std::io::IsTerminal;
use std::time::Duration;

use clap::builder::styling::{self, AnsiColor};
use comfy_table::{ContentArrangement, presets};
use leasehold::model::{Timestamp, format_duration};
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

/// Returns the elapsed time: `3s ago`.
pub(crate) fn ago(now: Timestamp, then: Timestamp) -> String {
    format!("{} ago", short(now.since(then)))
}

/// Returns the distance from now: `in 25s`, or `3s ago` if that time has passed.
pub(crate) fn shortly(now: Timestamp, then: Timestamp) -> String {
    if now < then { format!("in {}", short(then.since(now))) } else { ago(now, then) }
}

/// Returns a time and its distance from now.
pub(crate) fn when(now: Timestamp, then: Timestamp) -> String {
    format!("{then} ({})", shortly(now, then))
}

/// Formats a duration to the second, unless it is shorter than that.
pub(crate) fn short(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format_duration(duration),
        seconds => format_duration(Duration::from_secs(seconds)),
    }
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

/// Quotes a word for a shell.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
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

/// Colour setting of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    on: bool,
}

impl Style {
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { on: false };

    /// Returns the setting for this stream.
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: stream.is_terminal() && !set("NO_COLOR") && !dumb }
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

/// Function that colours a whole row.
pub(super) type Tint = fn(Style, String) -> String;

/// Returns rows under a heading. Cells are escaped: none of their characters breaks the line or changes
/// the terminal.
pub(super) fn table(
    headings: &[&str],
    rows: impl IntoIterator<Item = (Tint, Vec<String>)>,
    style: Style,
) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut tints = vec![(|style, line| style.bold(line)) as Tint];
    for (tint, cells) in rows {
        table.add_row(cells.into_iter().map(|cell| visible(&cell)));
        tints.push(tint);
    }
    lines(table.lines().zip(tints).map(|(line, tint)| tint(style, line.trim_end().to_owned())))
}

pub(super) fn plain(_: Style, line: String) -> String {
    line
}

pub(super) fn warning_if(is_unusual: bool) -> Tint {
    if is_unusual { Style::warning } else { plain }
}

/// Returns a block of names and values, with the values aligned in one column.
pub(super) fn block(indent: usize, rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines(rows.iter().map(|(name, value)| format!("{:indent$}{name:width$}  {}", "", visible(value))))
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
    fn times_are_relative_to_now() {
        let at = Timestamp::from_micros;
        assert_eq!(ago(at(65_700_000), at(0)), "1m5s ago");
        assert_eq!(shortly(at(0), at(900_000)), "in 900ms");
        assert_eq!(shortly(at(2_500_000), at(1_000_000)), "1s ago");
    }

    #[test]
    fn words_are_quoted_only_if_they_must_be() {
        assert_eq!(shell_word("a/b-c"), "a/b-c");
        assert_eq!(shell_word("it's $(me)"), "'it'\\''s $(me)'");
        assert_eq!(shell_word(""), "''");
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
