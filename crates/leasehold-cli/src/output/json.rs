//! JSON output, which may end up on a terminal or in a log: no character of it moves the cursor,
//! starts a control sequence, breaks a line or changes the direction of the text.

use std::fmt::Write;

use serde::Serialize;

use super::text::is_unsafe;

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
    fn what_could_change_a_terminal_is_escaped_and_means_the_same() {
        let text = "a\u{9b}31m\u{202e}b\u{2028}c\u{7f}é\n";
        let line = to_line(&text).unwrap();
        assert_eq!(line, "\"a\\u009b31m\\u202eb\\u2028c\\u007fé\\n\"");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        let stored: &RawValue = serde_json::from_str("{\"a\":\r\n\"\u{9b}\"}").unwrap();
        assert_eq!(to_line(&stored).unwrap(), "{\"a\": \n\"\\u009b\"}");
    }
}
