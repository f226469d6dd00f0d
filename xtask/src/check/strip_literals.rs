//! Blanks comments and literals, so that a rule never matches a word in a text.

/// Returns the same lines, with every comment, string and character literal replaced by spaces.
pub(super) fn strip_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut rest = &chars[..];
    let mut in_word = false;
    while let [first, ..] = rest {
        let hidden = hidden_len(rest, in_word).min(rest.len());
        if hidden == 0 {
            code.push(*first);
        }
        code.extend(rest[..hidden].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        in_word = hidden == 0 && is_word_char(*first);
        rest = &rest[hidden.max(1)..];
    }
    code
}

/// Whether the character can be part of a name.
pub(super) fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of the comment or literal that starts here; 0 if this is code.
fn hidden_len(rest: &[char], in_word: bool) -> usize {
    match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment_len(rest),
        ['"', ..] => string_len(rest),
        // The character after the backslash may itself be a quote.
        ['\'', '\\', ..] => rest.iter().skip(3).position(|c| *c == '\'').map_or(rest.len(), |at| 3 + at + 1),
        ['\'', _, '\'', ..] => 3,
        ['b' | 'c', 'r', ..] if !in_word => raw_string_len(&rest[1..]).map_or(0, |len| len + 1),
        ['r', ..] if !in_word => raw_string_len(rest).unwrap_or(0),
        _ => 0,
    }
}

fn block_comment_len(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_len(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the length of `r"…"` or `r#"…"#`; `None` if this is a name that begins with r.
fn raw_string_len(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    let open = 1 + hashes + 1;
    if rest.get(open - 1) != Some(&'"') {
        return None;
    }
    let mut close = vec!['"'];
    close.resize(1 + hashes, '#');
    let inner = rest[open..].windows(close.len()).position(|end| end == close);
    Some(inner.map_or(rest.len(), |len| open + len + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that `unsafe` is blanked, and that the rest of the text is still there.
    fn hides(text: &str) {
        let code = strip_literals(text);
        assert!(!code.contains("unsafe"), "{code}");
        assert!(code.contains("after"), "{code}");
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn comments_are_hidden() {
        hides("// unsafe\nafter");
        hides("/// unsafe\n//! unsafe\nafter");
        hides("/* unsafe /* nested */ unsafe\n */ after");
    }

    #[test]
    fn strings_are_hidden() {
        hides(r#" "unsafe"; after "#);
        hides(r#" "a \" unsafe \\"; after "#);
        hides("\"two\n unsafe lines\"; after");
        hides(r##" r"unsafe \"; br#"un"safe unsafe"#; after "##);
        hides("b\"unsafe\"; c\"unsafe\"; after");
    }

    #[test]
    fn characters_are_hidden_and_lifetimes_are_not() {
        assert_eq!(strip_literals(r"'\'' '\\' '\u{41}' '{' x"), format!("{}x", " ".repeat(24 - 1)));
        assert_eq!(strip_literals("fn f<'a, 'b>(x: &'a str)"), "fn f<'a, 'b>(x: &'a str)");
        assert_eq!(strip_literals("'outer: loop { break 'outer; }"), "'outer: loop { break 'outer; }");
    }

    #[test]
    fn names_that_begin_like_a_raw_string_stay() {
        assert_eq!(strip_literals("r#type r br for_r\"x\""), format!("r#type r br for_r{}", "   "));
    }

    #[test]
    fn an_incomplete_text_is_accepted() {
        for text in ["\"open", "/* open", "r#\"open", "'\\", "\"\\", "'", "r", "b"] {
            assert_eq!(strip_literals(text).len(), text.len());
        }
    }
}
