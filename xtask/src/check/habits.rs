//! The shape that every file keeps: what it begins with, how long it is, and what may not stand in it.

use super::Complaint;
use super::mask::is_word_char;
use super::source::{Source, find_word, line_at};

pub(super) const RULES: [fn(&Source) -> Vec<Complaint>; 7] = [
    a_file_begins_with_its_purpose,
    a_file_is_short,
    mod_and_lib_hold_no_functions,
    unsafe_has_one_home,
    nothing_panics_for_want_of_care,
    no_test_is_ignored,
    exceptions_give_a_reason,
];

const MOST_LINES: usize = 600;
const UNSAFE_HOME: &str = "crates/leasehold-cli/src/run/sys.rs";

/// What has no place in code that ships, and what stands there instead.
const CARELESS: [(&str, &str); 4] = [
    ("unwrap", "return the error, or `expect` an invariant"),
    ("todo!", "write it or leave it out"),
    ("unimplemented!", "write it or leave it out"),
    ("dbg!", "use `tracing`, or take it out"),
];

fn a_file_begins_with_its_purpose(source: &Source) -> Vec<Complaint> {
    if source.text.starts_with("//! ") {
        return Vec::new();
    }
    vec![source.complaint(1, "begin the file with a `//!` line that says what it is for")]
}

fn a_file_is_short(source: &Source) -> Vec<Complaint> {
    let lines = source.text.lines().count();
    if lines <= MOST_LINES {
        return Vec::new();
    }
    let text = format!("{lines} lines; the most is {MOST_LINES}: split the file by idea");
    vec![source.complaint(MOST_LINES + 1, text)]
}

fn mod_and_lib_hold_no_functions(source: &Source) -> Vec<Complaint> {
    if !["mod.rs", "lib.rs"].contains(&source.file_name()) {
        return Vec::new();
    }
    let text = "mod.rs and lib.rs declare, re-export and explain; move the function to a file of its own";
    function_lines(&source.code)
        .filter(|line| !source.is_in_test_item(*line))
        .map(|line| source.complaint(line, text))
        .collect()
}

/// The lines on which a function with a body begins.
fn function_lines(code: &str) -> impl Iterator<Item = usize> {
    code.match_indices("fn ").filter_map(|(at, _)| {
        let begins_word = !code[..at].ends_with(is_word_char);
        (begins_word && has_body(&code[at..])).then(|| line_at(code, at))
    })
}

/// Whether a brace comes before the semicolon that ends a bare signature; `[u8; 4]` ends nothing.
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

fn unsafe_has_one_home(source: &Source) -> Vec<Complaint> {
    if source.path == UNSAFE_HOME {
        return Vec::new();
    }
    let lines = source.lines().filter(|(_, line)| find_word(line, "unsafe").is_some());
    let text = format!("`unsafe` has one home, {UNSAFE_HOME}; find a crate that serves, or add a call there");
    lines.map(|(line, _)| source.complaint(line, text.clone())).collect()
}

fn nothing_panics_for_want_of_care(source: &Source) -> Vec<Complaint> {
    let mut all = Vec::new();
    for (line, code) in source.shipped_lines() {
        for (word, instead) in CARELESS {
            if find_word(code, word).is_some() {
                all.push(source.complaint(line, format!("`{word}` outside tests: {instead}")));
            }
        }
    }
    all
}

fn no_test_is_ignored(source: &Source) -> Vec<Complaint> {
    let lines = attribute_lines(&source.code, "ignore");
    lines.map(|line| source.complaint(line, "`#[ignore]`: mend the test or delete it")).collect()
}

fn exceptions_give_a_reason(source: &Source) -> Vec<Complaint> {
    let text = "`#[allow]`: write `#[expect(…, reason = \"…\")]`, which ends when its cause does";
    attribute_lines(&source.code, "allow").map(|line| source.complaint(line, text)).collect()
}

/// The lines on which an attribute of this name begins, by itself or under a condition.
fn attribute_lines(code: &str, name: &str) -> impl Iterator<Item = usize> {
    code.match_indices("#[").chain(code.match_indices("#![")).filter_map(move |(at, opening)| {
        let rest = &code[at + opening.len()..];
        let attribute = &rest[..rest.find(']').unwrap_or(rest.len())];
        let place = find_word(attribute, name)?;
        (place == 0 || attribute.starts_with("cfg_attr")).then(|| line_at(code, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Source) -> Vec<Complaint>, path: &str, text: &str) -> Vec<usize> {
        let complaints = rule(&Source::new(path, text));
        complaints.iter().map(|complaint| complaint.line).collect()
    }

    const NONE: [usize; 0] = [];
    const ANY: &str = "crates/x/src/a.rs";
    const LIB: &str = "crates/x/src/lib.rs";
    const TEST: &str = "crates/x/tests/it/a.rs";

    #[test]
    fn a_file_begins_with_its_purpose() {
        let rule = super::a_file_begins_with_its_purpose;
        assert_eq!(lines(rule, ANY, "//! What it is for.\n"), NONE);
        for text in ["", "\n//! Late.\n", "// Not a doc.\n", "//!\n", "mod a;\n"] {
            assert_eq!(lines(rule, ANY, text), [1], "{text}");
            assert_eq!(lines(rule, TEST, text), [1], "{text}");
        }
    }

    #[test]
    fn a_file_is_short() {
        assert_eq!(lines(super::a_file_is_short, ANY, &"\n".repeat(600)), NONE);
        assert_eq!(lines(super::a_file_is_short, TEST, &"\n".repeat(601)), [601]);
    }

    #[test]
    fn mod_and_lib_hold_no_functions() {
        let rule = super::mod_and_lib_hold_no_functions;
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
    fn unsafe_has_one_home() {
        let rule = super::unsafe_has_one_home;
        let text = "#![deny(unsafe_code)]\n// unsafe\nunsafe { f() }\n";
        assert_eq!(lines(rule, ANY, text), [3]);
        assert_eq!(lines(rule, TEST, text), [3]);
        assert_eq!(lines(rule, UNSAFE_HOME, text), NONE);
    }

    #[test]
    fn nothing_panics_for_want_of_care() {
        let rule = super::nothing_panics_for_want_of_care;
        let text =
            "a.unwrap();\ntodo!();\nunimplemented!();\ndbg!(a);\na.unwrap_or(1);\na.map(Option::unwrap);\n";
        assert_eq!(lines(rule, ANY, text), [1, 2, 3, 4, 6]);
        assert_eq!(lines(rule, TEST, text), NONE);
        let text = "/// a.unwrap()\nfn f() { g(\"unwrap()\") }\n";
        assert_eq!(lines(rule, ANY, text), NONE);
    }

    #[test]
    fn no_test_is_ignored() {
        let rule = super::no_test_is_ignored;
        let text = "#[test]\n#[ignore]\n#[ignore = \"slow\"]\n#[cfg_attr(miri, ignore)]\nfn ignore() {}\n";
        assert_eq!(lines(rule, TEST, text), [2, 3, 4]);
    }

    #[test]
    fn exceptions_give_a_reason() {
        let rule = super::exceptions_give_a_reason;
        let text = "#[allow(dead_code)]\n#[cfg_attr(\n    test,\n    allow(dead_code)\n)]\n";
        assert_eq!(lines(rule, ANY, text), [1, 2]);
        assert_eq!(lines(rule, ANY, "#[expect(dead_code)]\nlet allow = 1;\n"), NONE);
        assert_eq!(lines(rule, TEST, "#![allow(dead_code)]\n"), [1]);
    }
}
