//! Source file: its text, its code without comments and literals, and which lines are tests.

use std::fmt;

/// Violation of a rule: its position, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Violation {
    pub(super) path: String,
    pub(super) line: usize,
    pub(super) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

pub(super) struct Source {
    /// Path from the root of the repository, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    /// Text with comments and literals blanked; the lines are the same.
    pub(super) code: String,
    /// For each line, whether it belongs to an item under `#[cfg(test)]`.
    test_items: Vec<bool>,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let code = strip_literals(text);
        Self { path: path.to_owned(), text: text.to_owned(), test_items: test_items(&code), code }
    }

    pub(super) fn violation(&self, line: usize, text: impl Into<String>) -> Violation {
        Violation { path: self.path.clone(), line, text: text.into() }
    }

    pub(super) fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Whether the file is `folder.rs` or is in `folder/`.
    pub(super) fn is_in(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    /// Returns every line of code with its number.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }

    /// Returns the lines of code that are not tests, with their numbers.
    pub(super) fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().filter(|(line, _)| !self.is_test(*line))
    }

    /// Whether the line belongs to a test, by its file or by `#[cfg(test)]`.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.path.contains("/tests/")
            || ["tests.rs", "fuzz.rs"].contains(&self.file_name())
            || self.is_in_test_item(line)
    }

    pub(super) fn is_in_test_item(&self, line: usize) -> bool {
        self.test_items.get(line - 1).copied().unwrap_or(false)
    }
}

/// Returns the number of the line that contains this byte of the code.
pub(super) fn line_at(code: &str, offset: usize) -> usize {
    1 + code[..offset].matches('\n').count()
}

pub(super) fn find_word(line: &str, word: &str) -> Option<usize> {
    line.match_indices(word).map(|(at, _)| at).find(|at| {
        let joins_before = line[..*at].ends_with(is_word_char);
        let joins_after = word.ends_with(is_word_char) && line[at + word.len()..].starts_with(is_word_char);
        !joins_before && !joins_after
    })
}

fn test_items(code: &str) -> Vec<bool> {
    let mut tests = vec![false; code.lines().count()];
    for condition in ["#[cfg(test)]", "#[cfg(all(test,"] {
        for (start, _) in code.match_indices(condition) {
            let last = line_at(code, item_end(code, start));
            tests[line_at(code, start) - 1..last].fill(true);
        }
    }
    tests
}

/// Returns the byte at which the item that begins here ends: its closing brace or its semicolon.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0;
    for (at, c) in code[start..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth < 0 || (depth == 0 && matches!(c, '}' | ';')) {
            return start + at;
        }
    }
    code.trim_end().len()
}

/// Returns the same lines, with every comment, string and character literal replaced by spaces.
fn strip_literals(text: &str) -> String {
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

    fn shipped(path: &str, text: &str) -> Vec<usize> {
        Source::new(path, text).shipped_lines().map(|(line, _)| line).collect()
    }

    #[test]
    fn an_item_under_cfg_test_is_a_test_and_what_follows_is_not() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        assert_eq!(shipped("crates/x/src/a.rs", text), [1, 6]);
        let text = "#[cfg(test)]\nmod tests;\nmod c;\n";
        assert_eq!(shipped("crates/x/src/a.rs", text), [3]);
        let text = "#[cfg(all(test, unix))]\n#[derive(Debug)]\nstruct B([u8; 2]);\nstruct C;\n";
        assert_eq!(shipped("crates/x/src/a.rs", text), [4]);
    }

    #[test]
    fn a_brace_in_a_string_and_an_item_without_end_are_accepted() {
        let text = "#[cfg(test)]\nmod tests {\n    const A: &str = \"}\";\n    fn b() {}\n}\nfn c() {}\n";
        assert_eq!(shipped("crates/x/src/a.rs", text), [6]);
        assert_eq!(shipped("crates/x/src/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n"), [1]);
    }

    #[test]
    fn a_negated_condition_ships() {
        assert_eq!(shipped("crates/x/src/a.rs", "#[cfg(not(test))]\nfn a() {}\n"), [1, 2]);
    }

    #[test]
    fn files_of_tests_are_tests() {
        for path in ["crates/x/tests/it/a.rs", "crates/x/src/a/tests.rs", "crates/x/src/a/tests/b.rs"] {
            assert!(shipped(path, "fn a() {}\n").is_empty(), "{path}");
        }
        assert_eq!(shipped("crates/x/src/contests.rs", "fn a() {}\n"), [1]);
    }

    #[test]
    fn a_word_is_found_whole() {
        assert_eq!(find_word("unsafe_code, unsafe {", "unsafe"), Some(13));
        assert_eq!(find_word("x.unwrap_or(1)", "unwrap"), None);
        assert_eq!(find_word("my_todo!()", "todo!"), None);
        assert_eq!(find_word("    todo!()", "todo!"), Some(4));
    }

    #[test]
    fn a_folder_is_more_than_a_prefix() {
        let source = |path| Source::new(path, "");
        assert!(source("crates/x/src/model/a.rs").is_in("crates/x/src/model"));
        assert!(source("crates/x/src/model.rs").is_in("crates/x/src/model"));
        assert!(!source("crates/x/src/model_check.rs").is_in("crates/x/src/model"));
    }

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
