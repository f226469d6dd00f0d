//! Source file: its text, its code without comments and literals, and which lines are tests.

use super::Violation;
use super::strip_literals::{is_word_char, strip_literals};

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

    /// Returns the last part of the path.
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
        self.path.contains("/tests/") || self.file_name() == "tests.rs" || self.is_in_test_item(line)
    }

    pub(super) fn is_in_test_item(&self, line: usize) -> bool {
        self.test_items.get(line - 1).copied().unwrap_or(false)
    }
}

/// Returns the number of the line that contains this byte of the code.
pub(super) fn line_at(code: &str, offset: usize) -> usize {
    1 + code[..offset].matches('\n').count()
}

/// Returns the position of a whole word in the line.
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
}
