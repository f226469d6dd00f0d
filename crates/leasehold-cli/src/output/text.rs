//! Formatting of durations, times and names for sentences and tables.

use std::time::Duration;

use leasehold::model::{Timestamp, format_duration};

/// Whether a character could move the cursor, start a control sequence, break a line or change the
/// direction of the text: control characters (C0, C1 and DEL), line separators and bidirectional
/// controls.
pub(crate) fn is_unsafe(c: char) -> bool {
    let breaks_or_turns = matches!(c, '\u{2028}' | '\u{2029}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || breaks_or_turns
}

/// Escapes text of another program or person, so that it stays on one line and cannot change the
/// terminal.
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

#[cfg(test)]
mod tests {
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
}
