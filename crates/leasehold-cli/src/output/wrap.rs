//! Lines that fit a terminal: sentences are broken between words, commands with a backslash, so that a
//! shell reads them as one. Elsewhere lines are not broken, so that programs can search them.

use unicode_width::UnicodeWidthStr;

use super::text::{Layout, Style, lines, visible};

/// Least width that lines are broken to: a narrower terminal breaks them itself.
const MIN_WIDTH: usize = 40;

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

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Style = Style::plain_as(Layout::Fit(40));

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
}
