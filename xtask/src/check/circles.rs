//! Rule: no circles between files. A file uses another if a path in it leads to an item there, also
//! through the re-exports of other files; a file that only re-exports an item does not use it.

use std::collections::{BTreeMap, VecDeque};

use super::paths::{Mention, mentions};
use super::source::{Source, Violation, find_word};

/// Imports that lead from one to the next, before a chain of re-exports counts as endless.
const MAX_STEPS: u8 = 16;

/// Returns a violation for each file that is in a circle.
pub(super) fn circles(sources: &[Source]) -> Vec<Violation> {
    let mut found = Vec::new();
    for files in crates(sources).values() {
        let graph = Graph::of(files);
        for (from, source) in files.iter().enumerate() {
            let Some((line, circle)) = graph.circle(from) else { continue };
            let names: Vec<_> = circle.into_iter().map(|file| inside(&files[file].path)).collect();
            let text = "move what both sides need to the file that owns it, or to one of its own";
            found.push(source.violation(line, format!("circle {}: {text}", names.join(" → "))));
        }
    }
    found
}

/// Returns the files of each crate that are not tests, by the folder of the crate's source.
fn crates(sources: &[Source]) -> BTreeMap<&str, Vec<&Source>> {
    let mut crates = BTreeMap::<_, Vec<_>>::new();
    for source in sources.iter().filter(|source| !source.is_test(1)) {
        if let Some((folder, _)) = source.path.split_once("/src/") {
            crates.entry(folder).or_default().push(source);
        }
    }
    crates
}

fn inside(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(_, inside)| inside)
}

/// Which file of a crate uses which.
struct Graph {
    /// For each file, the files that it uses, and the line of the first use.
    uses: Vec<BTreeMap<usize, usize>>,
}

impl Graph {
    fn of(files: &[&Source]) -> Self {
        let names = Names::of(files);
        let mut uses = vec![BTreeMap::new(); files.len()];
        for (from, mentions) in names.mentions.iter().enumerate() {
            for mention in mentions {
                let is_export = mention.import.as_ref().is_some_and(|import| import.is_export);
                let target = names.file_of(from, &mention.segments, MAX_STEPS);
                if let Some(to) = target.filter(|to| *to != from && !is_export) {
                    uses[from].entry(to).or_insert(mention.line);
                }
            }
        }
        Self { uses }
    }

    /// Returns the shortest circle through a file, with the line of its first use; `None` if there is
    /// none.
    fn circle(&self, from: usize) -> Option<(usize, Vec<usize>)> {
        let mut before = BTreeMap::new();
        let mut next = VecDeque::from([from]);
        while let Some(file) = next.pop_front() {
            for to in self.uses[file].keys() {
                if *to == from {
                    let mut circle = vec![from, file];
                    while circle.last() != Some(&from) {
                        circle.push(before[&circle[circle.len() - 1]]);
                    }
                    circle.reverse();
                    return Some((self.uses[from][&circle[1]], circle));
                }
                if !before.contains_key(to) {
                    before.insert(*to, file);
                    next.push_back(*to);
                }
            }
        }
        None
    }
}

/// Names of a crate: its modules, and what each file imports.
struct Names<'a> {
    files: &'a [&'a Source],
    /// File of each module.
    modules: BTreeMap<Vec<String>, usize>,
    module_of: Vec<Vec<String>>,
    mentions: Vec<Vec<Mention>>,
}

impl<'a> Names<'a> {
    fn of(files: &'a [&'a Source]) -> Self {
        let module_of: Vec<_> = files.iter().map(|file| super::paths::module_of(&file.path)).collect();
        let modules = module_of.iter().cloned().zip(0..).collect();
        Self { files, modules, module_of, mentions: files.iter().map(|file| mentions(file)).collect() }
    }

    /// Returns the file with the item that a path in a file leads to; `None` for a module, or an item of
    /// another crate.
    fn file_of(&self, file: usize, path: &[String], steps: u8) -> Option<usize> {
        let path = self.absolute(file, path, steps)?;
        let is_module = |len: &usize| self.modules.contains_key(&path[..*len]);
        let len = (1..=path.len()).rev().find(is_module)?;
        let owner = self.modules[&path[..len]];
        let name = path.get(len)?;
        if self.defines(owner, name) {
            return Some(owner);
        }
        let steps = steps.checked_sub(1)?;
        let mut imports = self.imports(owner, name);
        if let Some(import) = imports.next() {
            let rest = &path[len + 1..];
            return self.file_of(owner, &[&import.segments, rest].concat(), steps);
        }
        let mut globs = self.imports(owner, "*");
        let behind_glob = globs.find_map(|glob| {
            let target = self.file_of(owner, &[&glob.segments[..], &path[len..]].concat(), steps)?;
            self.defines(target, name).then_some(target)
        });
        behind_glob.or(Some(owner))
    }

    /// Returns the path from the root of the crate.
    fn absolute(&self, file: usize, path: &[String], steps: u8) -> Option<Vec<String>> {
        let first = path.first()?;
        if first == "crate" {
            return Some(path.to_vec());
        }
        let child = [&self.module_of[file][..], path].concat();
        if self.modules.contains_key(&child[..=self.module_of[file].len()]) {
            return Some(child);
        }
        let import = self.imports(file, first).find(|import| import.segments.first() != Some(first))?;
        self.absolute(file, &[&import.segments, &path[1..]].concat(), steps.checked_sub(1)?)
    }

    fn imports(&self, file: usize, name: &str) -> impl Iterator<Item = &Mention> {
        let is_it = move |mention: &&Mention| mention.import.as_ref().is_some_and(|it| it.name == name);
        self.mentions[file].iter().filter(is_it)
    }

    fn defines(&self, file: usize, name: &str) -> bool {
        const KEYWORDS: [&str; 9] =
            ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules!"];
        self.files[file].shipped_lines().any(|(_, line)| {
            let before = find_word(line, name).map(|at| line[..at].trim_end());
            before.is_some_and(|before| {
                KEYWORDS.iter().any(|word| before.ends_with(word) && find_word(before, word).is_some())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(name, text): &(&str, &str)| Source::new(&format!("crates/x/src/{name}"), text);
        let sources: Vec<_> = files.iter().map(source).collect();
        let text =
            |found: &Violation| found.to_string().split(": move").next().unwrap_or_default().to_owned();
        circles(&sources).iter().map(text).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\npub use b::*;\n");

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let a = ("a.rs", "use crate::b::B;\npub struct A(B);\n");
        let b = ("b.rs", "pub struct B;\nfn f() { super::a::A; }\n");
        let both = [
            "crates/x/src/a.rs:1: circle a.rs → b.rs → a.rs",
            "crates/x/src/b.rs:2: circle b.rs → a.rs → b.rs",
        ];
        assert_eq!(starts(&[LIB, a, b]), both);
        assert!(starts(&[LIB, a, ("b.rs", "pub struct B;\n")]).is_empty());
        assert!(starts(&[LIB, a, ("b.rs", "pub struct B;\n#[cfg(test)]\nuse super::a::A;\n")]).is_empty());
    }

    #[test]
    fn circles_go_through_exports_and_imported_modules_and_may_be_long() {
        let a = ("a.rs", "use crate::b;\npub struct A(b::B);\n");
        for text in ["use crate::A;\npub struct B(A);\n", "use super::A as X;\npub struct B(X);\n"] {
            assert_eq!(starts(&[LIB, a, ("b.rs", text)]).len(), 2, "{text}");
        }
        let b = ("b.rs", "use crate::c::C;\npub struct B(C);\n");
        let long = starts(&[LIB, a, b, ("c.rs", "use crate::A;\npub struct C(A);\n")]);
        assert_eq!(long[0], "crates/x/src/a.rs:2: circle a.rs → b.rs → c.rs → a.rs");
        let c = ("c.rs", "use crate::B;\npub struct C(B);\n");
        assert_eq!(starts(&[LIB, ("b.rs", "use crate::c;\npub fn B() { c::C; }\n"), c]).len(), 2);
    }

    #[test]
    fn a_parent_that_only_declares_and_exports_is_in_no_circle() {
        let a = ("a/mod.rs", "mod d;\npub use d::D;\n");
        assert!(starts(&[LIB, a, ("a/d.rs", "use super::D;\npub struct D;\n")]).is_empty());
        let a = ("a/mod.rs", "mod d;\npub struct A;\nfn f() { d::D; }\n");
        assert_eq!(starts(&[LIB, a, ("a/d.rs", "use super::A;\npub struct D;\n")]).len(), 2);
    }
}
