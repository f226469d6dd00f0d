//! Paths that a file mentions, in imports and inline, in full: `use crate::{a, b::c}` has two.

use super::source::{Source, is_word_char, line_at};

/// Path, such as `crate::store::Store`, and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) line: usize,
    pub(super) segments: Vec<String>,
    /// How the path is imported; `None` for a path inside code.
    pub(super) import: Option<Import>,
}

/// Import of a path: the name that it gets in the file, `*` for all names in the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) name: String,
    /// Whether other files can use the name too: `pub use`, `pub(crate) use`.
    pub(super) is_export: bool,
}

impl Mention {
    /// Returns the path as it would be written.
    pub(super) fn name(&self) -> String {
        self.segments.join("::")
    }

    /// Whether the path is `prefix` or something inside it.
    pub(super) fn is_under(&self, prefix: &str) -> bool {
        let mut segments = self.segments.iter();
        prefix.split("::").all(|part| segments.next().is_some_and(|segment| segment == part))
    }
}

/// Returns every path outside tests. `self` and `super` are resolved from the path of the file; inside
/// an inline module they are one level deeper, which matters to no rule here.
pub(super) fn mentions(source: &Source) -> Vec<Mention> {
    let tokens = tokens(&source.code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let export = imported(&tokens[..at]);
        // A single word is a path only in an import; otherwise it may be a variable.
        let min_segments = if export.is_some() { 1 } else { 2 };
        let mut here = Vec::new();
        at = read_path(&tokens, at, &[], &mut here).max(at + 1);
        let here = here.into_iter().filter(|path| path.segments.len() >= min_segments);
        found.extend(here.map(|path| (path, export)));
    }
    let module = module_of(&source.path);
    let mention = |(path, export): (Path<'_>, Option<bool>)| {
        let name = path.alias.or(path.segments.last().copied()).unwrap_or_default().to_owned();
        Mention {
            line: line_at(&source.code, path.offset),
            segments: resolve(&module, &path.segments),
            import: export.map(|is_export| Import { name, is_export }),
        }
    };
    let shipped = |mention: &Mention| !source.is_test(mention.line);
    found.into_iter().map(mention).filter(shipped).collect()
}

/// Returns whether an import that begins here is an export; `None` if no import begins here.
fn imported(before: &[(usize, Token)]) -> Option<bool> {
    let ([rest @ .., (_, Token::Use)] | [rest @ .., (_, Token::Use), (_, Token::Separator)]) = before else {
        return None;
    };
    Some(matches!(rest, [.., (_, Token::Word("pub") | Token::Other(')'))]))
}

struct Path<'a> {
    offset: usize,
    segments: Vec<&'a str>,
    /// Name after `as`, or `*`.
    alias: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Use,
    Word(&'a str),
    Separator,
    Other(char),
}

fn tokens(code: &str) -> Vec<(usize, Token<'_>)> {
    let mut tokens = Vec::new();
    let mut offset = 0;
    while let Some(first) = code[offset..].chars().next() {
        let rest = &code[offset..];
        let word = &rest[..rest.find(|c| !is_word_char(c)).unwrap_or(rest.len())];
        let (token, len) = if word == "use" {
            (Token::Use, word.len())
        } else if !word.is_empty() {
            (Token::Word(word), word.len())
        } else if rest.starts_with("::") {
            (Token::Separator, 2)
        } else {
            (Token::Other(first), first.len_utf8())
        };
        if !first.is_whitespace() {
            tokens.push((offset, token));
        }
        offset += len;
    }
    tokens
}

type Found<'a> = Vec<Path<'a>>;

/// Reads the path that begins at a word, with all branches of its braces; returns the index of the next
/// token.
fn read_path<'a>(
    tokens: &[(usize, Token<'a>)],
    mut at: usize,
    prefix: &[&'a str],
    found: &mut Found<'a>,
) -> usize {
    let token = |at: usize| tokens.get(at).map(|(_, token)| *token);
    let start = at;
    let mut path = prefix.to_vec();
    while let Some(Token::Word(word)) = token(at) {
        path.push(word);
        at += 1;
        if token(at) != Some(Token::Separator) {
            break;
        }
        at += 1;
        if token(at) == Some(Token::Other('{')) {
            return read_branches(tokens, at + 1, &path, found);
        }
    }
    let alias = match (token(at), token(at + 1)) {
        (Some(Token::Other('*')), _) if at > start => Some("*"),
        (Some(Token::Word("as")), Some(Token::Word(name))) => Some(name),
        _ => None,
    };
    // `use a::{self}` imports `a`.
    if path.len() > 1 && path.last() == Some(&"self") {
        path.pop();
    }
    if let Some((offset, _)) = tokens.get(start).filter(|_| at > start) {
        found.push(Path { offset: *offset, segments: path, alias });
    }
    at
}

fn read_branches<'a>(
    tokens: &[(usize, Token<'a>)],
    mut at: usize,
    prefix: &[&'a str],
    found: &mut Found<'a>,
) -> usize {
    let mut is_branch = true;
    while let Some((_, token)) = tokens.get(at) {
        match token {
            Token::Other('}') => return at + 1,
            Token::Word(_) if is_branch => {
                at = read_path(tokens, at, prefix, found);
                // Before the next comma, only `as` and a name can follow.
                is_branch = false;
                continue;
            }
            Token::Other(',') => is_branch = true,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Returns the module of a file: `crates/x/src/store/sqlite/mod.rs` is `crate::store::sqlite`.
pub(super) fn module_of(path: &str) -> Vec<String> {
    let inside = path.split_once("/src/").map_or("", |(_, inside)| inside);
    let inside = inside.trim_end_matches(".rs");
    let parts = inside.split('/').filter(|part| !["", "mod", "lib", "main"].contains(part));
    std::iter::once("crate").chain(parts).map(str::to_owned).collect()
}

fn resolve(module: &[String], segments: &[&str]) -> Vec<String> {
    let mut rest = segments;
    let mut base: &[String] = &[];
    while let [first @ ("self" | "super"), after @ ..] = rest {
        if base.is_empty() {
            base = module;
        }
        if *first == "super" {
            base = &base[..base.len().saturating_sub(1)];
        }
        rest = after;
    }
    base.iter().cloned().chain(rest.iter().map(|segment| (*segment).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(path: &str, text: &str) -> Vec<String> {
        mentions(&Source::new(path, text)).iter().map(Mention::name).collect()
    }

    #[test]
    fn imports_are_written_out_in_full() {
        let text = "use crate::{\n    a::{B as Bee, c::D},\n    e,\n};\nuse f;\nuse ::g;\nuse ::h::i::*;\n";
        let all = ["crate::a::B", "crate::a::c::D", "crate::e", "f", "g", "h::i"];
        assert_eq!(paths("crates/x/src/lib.rs", text), all);
    }

    #[test]
    fn inline_paths_are_found_and_single_words_are_not() {
        let text = "fn f(x: u8) -> crate::A {\n    let y = std::fs::read::<P>(x);\n    y.b()\n}\n";
        assert_eq!(paths("crates/x/src/lib.rs", text), ["crate::A", "std::fs::read"]);
    }

    #[test]
    fn an_import_knows_its_name_and_whether_it_is_exported() {
        let text = "use a::B as Bee;\npub use c::{self, d::*};\npub(crate) use e::F;\nfn g() { h::i() }\n";
        let imports = mentions(&Source::new("crates/x/src/lib.rs", text)).into_iter().map(|mention| {
            let name = mention.name();
            (name, mention.import.map(|import| (import.name, import.is_export)))
        });
        let expected = [("a::B", "Bee", false), ("c", "c", true), ("c::d", "*", true), ("e::F", "F", true)];
        let expected = expected.map(|(path, name, export)| (path.into(), Some((name.into(), export))));
        assert_eq!(imports.collect::<Vec<_>>(), [&expected[..], &[("h::i".into(), None)]].concat());
    }

    #[test]
    fn self_and_super_are_resolved() {
        let text = "use super::memory::M;\nuse super::super::client;\nuse self::a::B;\n";
        let all = ["crate::store::memory::M", "crate::client", "crate::store::sqlite::a::B"];
        assert_eq!(paths("crates/x/src/store/sqlite/mod.rs", text), all);
        assert_eq!(paths("crates/x/src/store/sqlite.rs", text), all);
    }

    #[test]
    fn a_mention_knows_its_line_and_tests_have_none() {
        let text = "\nuse a::{\n    b,\n};\n#[cfg(test)]\nmod tests {\n    use c::d;\n}\n";
        let found = mentions(&Source::new("crates/x/src/lib.rs", text));
        let import = Some(Import { name: "b".into(), is_export: false });
        assert_eq!(found, [Mention { line: 3, segments: vec!["a".into(), "b".into()], import }]);
    }

    #[test]
    fn beginnings_are_compared_by_segment() {
        let segments = vec!["std".into(), "fs".into(), "read".into()];
        let mention = Mention { line: 1, segments, import: None };
        assert!(mention.is_under("std::fs") && mention.is_under("std::fs::read"));
        assert!(!mention.is_under("std::f") && !mention.is_under("std::fs::read::x"));
    }
}
