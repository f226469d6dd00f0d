//! JSON as text: its canonical form, and its maximum nesting depth.
//!
//! All JSON texts with the same meaning have one canonical form. Members of objects are sorted by name,
//! numbers and strings are written in one way, and there is no white space. Numbers are compared as
//! decimal numbers, not as floating-point numbers: two large numbers that differ in their last digit stay
//! different.
//!
//! Most parsers limit the nesting depth; every stored value stays within the limits of all of them.

use crate::{ValidationError, ValueKind};

/// Maximum nesting depth of arrays and objects in a payload, a result or a state.
pub const MAX_JSON_DEPTH: usize = 128;

/// Checks that a text is not nested deeper than [`MAX_JSON_DEPTH`]. The text must be valid JSON.
pub fn check_depth(json: &str) -> Result<(), ValidationError> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_JSON_DEPTH {
                    return Err(ValidationError::new(
                        ValueKind::Payload,
                        format!("the JSON is nested deeper than {MAX_JSON_DEPTH}"),
                    ));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the canonical form of a JSON text; `None` if the text is nested too deeply or is not JSON.
pub(super) fn canonical(json: &str) -> Option<Vec<u8>> {
    let mut reader = Reader { text: json, at: 0 };
    let mut out = Vec::with_capacity(json.len());
    reader.value(&mut out, 0)?;
    reader.blanks();
    (reader.at == json.len()).then_some(out)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Consumes this byte after skipping blanks; returns `None` if another byte follows.
    fn take(&mut self, byte: u8) -> Option<()> {
        self.blanks();
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn value(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        if depth > MAX_JSON_DEPTH {
            return None;
        }
        self.blanks();
        match self.peek()? {
            b'{' => self.object(out, depth),
            b'[' => self.array(out, depth),
            b'"' => self.string().map(|text| out.extend(text)),
            b'-' | b'0'..=b'9' => self.number().map(|text| out.extend(text.bytes())),
            _ => {
                let word = ["null", "true", "false"]
                    .into_iter()
                    .find(|word| self.text[self.at..].starts_with(word))?;
                self.at += word.len();
                out.extend(word.bytes());
                Some(())
            }
        }
    }

    fn array(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        self.take(b'[')?;
        out.push(b'[');
        if self.take(b']').is_none() {
            loop {
                self.value(out, depth + 1)?;
                if self.take(b']').is_some() {
                    break;
                }
                self.take(b',')?;
                out.push(b',');
            }
        }
        out.push(b']');
        Some(())
    }

    /// Reads an object. A repeated name stays repeated, in the order of the text: its meaning is
    /// left to the reader of the JSON.
    fn object(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        self.take(b'{')?;
        let mut members = Vec::<(Vec<u8>, Vec<u8>)>::new();
        if self.take(b'}').is_none() {
            loop {
                self.blanks();
                let (name, mut value) = (self.string()?, Vec::new());
                self.take(b':')?;
                self.value(&mut value, depth + 1)?;
                members.push((name, value));
                if self.take(b'}').is_some() {
                    break;
                }
                self.take(b',')?;
            }
        }
        members.sort_by(|one, other| one.0.cmp(&other.0));
        out.push(b'{');
        for (at, (name, value)) in members.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend(name);
            out.push(b':');
            out.extend(value);
        }
        out.push(b'}');
        Some(())
    }

    /// Reads a string with its quotes. A string with half of a surrogate pair cannot be written in
    /// another way and stays unchanged.
    fn string(&mut self) -> Option<Vec<u8>> {
        let start = self.at;
        (self.peek()? == b'"').then_some(())?;
        self.at += 1;
        let mut escaped = false;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    self.at += 2;
                }
                _ => self.at += 1,
            }
        }
        self.at += 1;
        let raw = self.text.get(start..self.at)?;
        let written = if escaped { serde_json::from_str::<String>(raw).ok() } else { None };
        let written = written.and_then(|text| serde_json::to_vec(&text).ok());
        Some(written.unwrap_or_else(|| raw.as_bytes().to_vec()))
    }

    /// Reads a number as its digits and a power of ten, such as `15e-1` for `1.50`.
    fn number(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let end =
            rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        let raw = &rest[..end];
        self.at += end;
        let (mantissa, exponent) = raw.split_once(['e', 'E']).unwrap_or((raw, "0"));
        let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let Ok(exponent) = exponent.parse::<i64>() else { return Some(raw.to_owned()) };
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_start_matches('0').trim_end_matches('0');
        if significant.is_empty() {
            return Some("0".to_owned());
        }
        let zeros = digits.len() - digits.trim_end_matches('0').len();
        let shift = i64::try_from(zeros).ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let Some(exponent) = exponent.checked_add(shift) else { return Some(raw.to_owned()) };
        Some(if exponent == 0 {
            format!("{sign}{significant}")
        } else {
            format!("{sign}{significant}e{exponent}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> String {
        String::from_utf8(canonical(json).unwrap()).unwrap()
    }

    #[test]
    fn texts_that_mean_the_same_have_one_form() {
        for (one, other) in [
            (r#"{"a":1,"b":2}"#, "{ \"b\" : 2.0,\n\t\"a\":1 }"),
            (r#"{"a":{"y":[],"x":{}}}"#, r#"{"\u0061":{"x":{ },"y":[ ]}}"#),
            ("[1.50,-0.0,100,1e2,0.00]", "[15e-1,0,1E+2,100.0,-0e9]"),
            (r#""\/\u00e4\n\ud83d\ude00""#, "\"/ä\\n😀\""),
        ] {
            assert_eq!(text(one), text(other));
        }
    }

    #[test]
    fn texts_that_differ_stay_apart() {
        let apart = [
            r#"{"a":1,"b":2}"#,
            r#"{"a":2,"b":1}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":2,"a":1}"#,
            "[1,2]",
            "[2,1]",
            "[12]",
            "12",
            "\"12\"",
            "-12",
            "12e1",
            "12e-1",
            "12345678901234567890123",
            "12345678901234567890124",
            "9007199254740993",
            "9007199254740992",
            "1e99999999999999999999",
            "1e99999999999999999998",
            "null",
            "\"null\"",
            "{}",
            "[]",
            "\"\\ud800\"",
            "\"\\ud801\"",
            "\"{}\"",
        ];
        let forms: std::collections::BTreeSet<Vec<u8>> =
            apart.iter().map(|json| canonical(json).unwrap()).collect();
        assert_eq!(forms.len(), apart.len());
    }

    #[test]
    fn what_nests_too_deeply_has_no_form() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(canonical(&nested(129)).is_some());
        assert_eq!(canonical(&nested(130)), None);
        assert_eq!(canonical(&nested(500_000)), None);
        for wrong in ["", "{", "[1", "[1,]", "{\"a\"}", "\"a", "nul", "1 2", "\"\\"] {
            assert_eq!(canonical(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_what_is_nested_counts() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check_depth(&nested(MAX_JSON_DEPTH)).is_ok());
        assert!(check_depth(&nested(MAX_JSON_DEPTH + 1)).is_err());
        assert!(check_depth(&format!("[{}1]", "[],".repeat(1000))).is_ok());
        assert!(check_depth(&format!("\"{}\\\"{}\"", "[".repeat(200), "{".repeat(200))).is_ok());
        assert!(check_depth(&format!("[\"\\\\\", {}]", nested(MAX_JSON_DEPTH))).is_err());
    }
}
