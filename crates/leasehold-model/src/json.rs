//! Maximum nesting depth of JSON. Most parsers have a limit; every stored value stays within the
//! limits of all of them.

use super::{ValidationError, ValueKind};

/// Maximum nesting depth of arrays and objects in a payload, a result or a state.
pub const DEEPEST_JSON: usize = 128;

/// Checks that a text is not nested deeper than [`DEEPEST_JSON`]. The text must be valid JSON.
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
                if depth > DEEPEST_JSON {
                    return Err(ValidationError::new(
                        ValueKind::Payload,
                        format!("the JSON is nested deeper than {DEEPEST_JSON}"),
                    ));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_nested_counts() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check_depth(&nested(DEEPEST_JSON)).is_ok());
        assert!(check_depth(&nested(DEEPEST_JSON + 1)).is_err());
        assert!(check_depth(&format!("[{}1]", "[],".repeat(1000))).is_ok());
        assert!(check_depth(&format!("\"{}\\\"{}\"", "[".repeat(200), "{".repeat(200))).is_ok());
        assert!(check_depth(&format!("[\"\\\\\", {}]", nested(DEEPEST_JSON))).is_err());
    }
}
