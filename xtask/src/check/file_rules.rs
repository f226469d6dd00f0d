//! Rules for each file: its first line, its length, and forbidden constructs.

use super::source::{Source, Violation, find_word, is_word_char, line_at};

pub(super) const RULES: [fn(&Source) -> Vec<Violation>; 7] = [
    starts_with_doc_comment,
    is_short_enough,
    no_functions_in_mod_and_lib,
    unsafe_only_in_one_file,
    no_panics_by_placeholder,
    no_ignored_tests,
    no_allow_attributes,
];

const MAX_LINES: usize = 600;
const UNSAFE_FILE: &str = "crates/leasehold-cli/src/run/sys.rs";

/// Constructs that are forbidden outside tests, and what to do instruction.
const FORBIDDEN: [(&str, &str); 4] = [
    ("unwrap", "return the error, or `expect` an invariant"),
    ("todo!", "write it or leave it out"),
    ("unimplemented!", "write it or leave it out"),
    ("dbg!", "use `tracing`, or remove it"),
];

fn starts_with_doc_comment(source: &Source) -> Vec<Violation> {
    if source.text.starts_with("//! ") {
        return Vec::new();
    }
    vec![source.violation(1, "start the file with a `//!` line that says what it holds")]
}

fn is_short_enough(source: &Source) -> Vec<Violation> {
    let lines = source.text.lines().count();
    if lines <= MAX_LINES {
        return Vec::new();
    }
    let text = format!("{lines} lines; at most {MAX_LINES} are allowed: split the file by idea");
    vec![source.violation(MAX_LINES + 1, text)]
}

fn no_functions_in_mod_and_lib(source: &Source) -> Vec<Violation> {
    if !["mod.rs", "lib.rs"].contains(&source.file_name()) {
        return Vec::new();
    }
    let text = "mod.rs and lib.rs declare, re-export and explain; move the function to another file";
    function_lines(&source.code)
        .filter(|line| !source.is_in_test_item(*line))
        .map(|line| source.violation(line, text))
        .collect()
}

fn function_lines(code: &str) -> impl Iterator<Item = usize> {
    code.match_indices("fn ").filter_map(|(at, _)| {
        let begins_word = !code[..at].ends_with(is_word_char);
        (begins_word && has_body(&code[at..])).then(|| line_at(code, at))
    })
}

/// Whether a brace precedes the semicolon that ends a bare signature; the semicolon in `[u8; 4]` does
/// not count.
fn has_body(function: &str) -> bool {
    let mut depth = 0;
    for c in function.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' => return true,
            ';' if depth == 0 => return false,
            _ => {}
        }
    }
    false
}

fn unsafe_only_in_one_file(source: &Source) -> Vec<Violation> {
    if source.path == UNSAFE_FILE {
        return Vec::new();
    }
    let lines = source.lines().filter(|(_, line)| find_word(line, "unsafe").is_some());
    let text = format!("`unsafe` is allowed only in {UNSAFE_FILE}; use a crate, or add a function there");
    lines.map(|(line, _)| source.violation(line, text.clone())).collect()
}

fn no_panics_by_placeholder(source: &Source) -> Vec<Violation> {
    let mut all = Vec::new();
    for (line, code) in source.shipped_lines() {
        for (word, instruction) in FORBIDDEN {
            if find_word(code, word).is_some() {
                all.push(source.violation(line, format!("`{word}` outside tests: {instruction}")));
            }
        }
    }
    all
}

fn no_ignored_tests(source: &Source) -> Vec<Violation> {
    let lines = attribute_lines(&source.code, "ignore");
    lines.map(|line| source.violation(line, "`#[ignore]`: fix the test or delete it")).collect()
}

fn no_allow_attributes(source: &Source) -> Vec<Violation> {
    let text = "`#[allow]`: write `#[expect(…, reason = \"…\")]`, which fails when it is no longer needed";
    attribute_lines(&source.code, "allow").map(|line| source.violation(line, text)).collect()
}

/// Returns the lines on which an attribute of this name begins, also inside `cfg_attr`.
fn attribute_lines(code: &str, name: &str) -> impl Iterator<Item = usize> {
    code.match_indices("#[").chain(code.match_indices("#![")).filter_map(move |(at, opening)| {
        let rest = &code[at + opening.len()..];
        let attribute = &rest[..rest.find(']').unwrap_or(rest.len())];
        let position = find_word(attribute, name)?;
        (position == 0 || attribute.starts_with("cfg_attr")).then(|| line_at(code, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Source) -> Vec<Violation>, path: &str, text: &str) -> Vec<usize> {
        let violations = rule(&Source::new(path, text));
        violations.iter().map(|violation| violation.line).collect()
    }

    const NONE: [usize; 0] = [];
    const ANY: &str = "crates/x/src/a.rs";
    const LIB: &str = "crates/x/src/lib.rs";
    const TEST: &str = "crates/x/tests/it/a.rs";

    #[test]
    fn starts_with_doc_comment() {
        let rule = super::starts_with_doc_comment;
        assert_eq!(lines(rule, ANY, "//! Purpose.\n"), NONE);
        for text in ["", "\n//! Late.\n", "// Not a doc.\n", "//!\n", "mod a;\n"] {
            assert_eq!(lines(rule, ANY, text), [1], "{text}");
            assert_eq!(lines(rule, TEST, text), [1], "{text}");
        }
    }

    #[test]
    fn is_short_enough() {
        assert_eq!(lines(super::is_short_enough, ANY, &"\n".repeat(600)), NONE);
        assert_eq!(lines(super::is_short_enough, TEST, &"\n".repeat(601)), [601]);
    }

    #[test]
    fn no_functions_in_mod_and_lib() {
        let rule = super::no_functions_in_mod_and_lib;
        let text = "mod a;\npub fn f(x: [u8; 4]) -> u8 {\n    1\n}\ntrait T {\n    async fn g(&self);\n}\n";
        for path in [LIB, "crates/x/src/a/mod.rs", "crates/x/tests/it/a/mod.rs"] {
            assert_eq!(lines(rule, path, text), [2], "{path}");
        }
        assert_eq!(lines(rule, ANY, text), NONE);
        assert_eq!(lines(rule, LIB, "type F = fn(u8) -> u8;\nstruct S {}\n"), NONE);
        let text = "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
        assert_eq!(lines(rule, LIB, text), NONE);
    }

    #[test]
    fn unsafe_only_in_one_file() {
        let rule = super::unsafe_only_in_one_file;
        let text = "#![deny(unsafe_code)]\n// unsafe\nunsafe { f() }\n";
        assert_eq!(lines(rule, ANY, text), [3]);
        assert_eq!(lines(rule, TEST, text), [3]);
        assert_eq!(lines(rule, UNSAFE_FILE, text), NONE);
    }

    #[test]
    fn no_panics_by_placeholder() {
        let rule = super::no_panics_by_placeholder;
        let text =
            "a.unwrap();\ntodo!();\nunimplemented!();\ndbg!(a);\na.unwrap_or(1);\na.map(Option::unwrap);\n";
        assert_eq!(lines(rule, ANY, text), [1, 2, 3, 4, 6]);
        assert_eq!(lines(rule, TEST, text), NONE);
        let text = "/// a.unwrap()\nfn f() { g(\"unwrap()\") }\n";
        assert_eq!(lines(rule, ANY, text), NONE);
    }

    #[test]
    fn no_ignored_tests() {
        let rule = super::no_ignored_tests;
        let text = "#[test]\n#[ignore]\n#[ignore = \"slow\"]\n#[cfg_attr(miri, ignore)]\nfn ignore() {}\n";
        assert_eq!(lines(rule, TEST, text), [2, 3, 4]);
    }

    #[test]
    fn no_allow_attributes() {
        let rule = super::no_allow_attributes;
        let text = "#[allow(dead_code)]\n#[cfg_attr(\n    test,\n    allow(dead_code)\n)]\n";
        assert_eq!(lines(rule, ANY, text), [1, 2]);
        assert_eq!(lines(rule, ANY, "#[expect(dead_code)]\nlet allow = 1;\n"), NONE);
        assert_eq!(lines(rule, TEST, "#![allow(dead_code)]\n"), [1]);
    }
}
