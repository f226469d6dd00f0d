//! Text for people: names, numbers, styles, and suggestions for mistyped names; lines that fit a terminal;
//! and values as JSON.
//!
//! Sentences are broken between words, commands with a backslash, so that a shell reads them as one. Elsewhere
//! than on a terminal lines are not broken, so that programs can search them.

use std::fmt::{Display, Write as _};
use std::io::IsTerminal;

use clap::builder::styling::{self, AnsiColor};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

/// Least width that lines are broken to: a narrower terminal breaks them itself.
const MIN_WIDTH: usize = 40;

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

/// Breaks a sentence, each further line with `indent` blanks before it.
pub(crate) fn wrapped(text: &str, indent: usize, style: Style) -> String {
    broken(text.split(' '), 0, indent, style.layout(), "")
}

/// Breaks a command that begins in column `start`, so that a shell still reads it as one; further lines
/// begin two columns later.
pub(super) fn wrapped_command(command: &str, start: usize, style: Style) -> String {
    broken(shell_words(command).into_iter(), start, start + 2, style.layout(), " \\")
}

/// Returns a block of names and values, with the values aligned in one column and broken to fit it.
pub(super) fn block(indent: usize, rows: &[(&str, String)], layout: Layout) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let column = indent + width + 2;
    lines(rows.iter().map(|(name, value)| {
        let value = visible(value);
        let value = broken(value.split(' '), column, column, layout, "");
        format!("{:indent$}{name:width$}  {value}", "")
    }))
}

fn broken<'a>(
    words: impl Iterator<Item = &'a str>,
    start: usize,
    indent: usize,
    layout: Layout,
    end: &str,
) -> String {
    let width = match layout {
        Layout::Fit(width) => width.max(MIN_WIDTH),
        Layout::Plain | Layout::Wide => usize::MAX,
    };
    let (mut text, mut used) = (String::new(), start);
    for word in words {
        let needed = word.width() + end.len();
        if text.is_empty() {
            used += word.width();
        } else if used.saturating_add(1 + needed) <= width {
            text.push(' ');
            used += 1 + word.width();
        } else {
            text.push_str(end);
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            used = indent + word.width();
        }
        text.push_str(word);
    }
    text
}

/// Splits a command at the blanks that are not between quotes.
fn shell_words(command: &str) -> Vec<&str> {
    let (mut words, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, c) in command.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if !quoted => escaped = true,
            '\'' => quoted = !quoted,
            ' ' if !quoted => {
                words.push(&command[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    words.push(&command[start..]);
    words
}

/// Returns the candidate that is most similar to a name, if it differs in a few characters only.
pub(crate) fn most_similar(name: &str, candidates: impl IntoIterator<Item = String>) -> Option<String> {
    let near = candidates.into_iter().filter(|candidate| candidate != name).filter_map(|candidate| {
        let distance = strsim::osa_distance(name, &candidate);
        let longer = name.chars().count().max(candidate.chars().count());
        (distance <= longer / 3).then_some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// Returns the end of a sentence that suggests a similar name; empty if there is none.
pub(crate) fn suggestion(name: &str, candidates: impl IntoIterator<Item = String>) -> String {
    most_similar(name, candidates).map(|similar| format!("; did you mean '{similar}'?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    const NARROW: Style = Style::plain_as(Layout::Fit(40));

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

    #[test]
    fn a_sentence_is_broken_between_words() {
        let text = "'deploy/prod' is held by ada@web1:4711 since 14:31:45, alone.";
        assert_eq!(wrapped(text, 2, Style::PLAIN), text, "programs read whole lines");
        let lines = wrapped(text, 2, NARROW);
        assert_eq!(lines, "'deploy/prod' is held by ada@web1:4711\n  since 14:31:45, alone.");
        let long = "x".repeat(60);
        assert_eq!(wrapped(&format!("a {long} b"), 0, NARROW), format!("a\n{long}\nb"));
    }

    #[test]
    fn a_value_is_broken_within_its_column() {
        let rows = [("user", "ada".to_owned()), ("purpose", "a migration of all the accounts".to_owned())];
        let wide = "  user     ada\n  purpose  a migration of all the accounts\n";
        assert_eq!(block(2, &rows, Layout::Plain), wide);
        let narrow = "  user     ada\n  purpose  a migration of all the\n           accounts\n";
        assert_eq!(block(2, &rows, NARROW.layout()), narrow);
    }

    #[test]
    fn a_broken_command_is_still_one_command() {
        let command = r"leasehold locks ask 'it'\''s mine, all of it' --reason 'TEXT'";
        let broken = wrapped_command(command, 2, NARROW);
        assert_eq!(broken, "leasehold locks ask \\\n    'it'\\''s mine, all of it' --reason \\\n    'TEXT'");
        assert_eq!(wrapped_command(command, 2, Style::PLAIN), command);
    }

    #[test]
    fn only_a_name_that_differs_little_is_suggested() {
        let known = || ["mail", "reports", "a"].map(str::to_owned);
        assert_eq!(most_similar("mial", known()).as_deref(), Some("mail"));
        assert_eq!(most_similar("report", known()).as_deref(), Some("reports"));
        for other in ["b", "video", "mail", ""] {
            assert_eq!(most_similar(other, known()), None, "{other}");
        }
    }
}
