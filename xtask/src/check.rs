//! `cargo xtask check`: rules for the source, as code. Each violation names a line and says what to do.
//!
//! The rules read text, not types: they find what a text search finds, and no more.

mod circles;
mod file_rules;
mod layers;
pub(crate) mod links;
mod paths;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use layers::Layout;
use source::{Source, Violation};

const FOLDERS: [&str; 5] = ["bench", "crates", "dist", "examples", "xtask"];

/// Prints every violation; returns whether there is none.
pub(crate) fn passes(root: &Path) -> Result<bool> {
    let sources = read_sources(root)?;
    let mut violations = violations(&sources);
    violations.extend(links::violations(root)?);
    for violation in &violations {
        println!("{violation}");
    }
    println!("files: {}, violations: {}", sources.len(), violations.len());
    Ok(violations.is_empty())
}

fn violations(sources: &[Source]) -> Vec<Violation> {
    let layout = Layout::of(sources);
    let mut all: Vec<_> = sources
        .iter()
        .flat_map(|source| {
            let layers = layers::RULES.iter().flat_map(|rule| rule(source, &layout));
            layers.chain(file_rules::RULES.iter().flat_map(|rule| rule(source)))
        })
        .chain(circles::circles(sources))
        .collect();
    all.sort();
    all.dedup();
    all
}

fn read_sources(root: &Path) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        if root.join(folder).is_dir() {
            find_rust(&root.join(folder), &mut paths)?;
        }
    }
    ensure!(!paths.is_empty(), "no Rust source under {}", root.display());
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        Ok(Source::new(&name, &text))
    };
    paths.iter().map(read).collect()
}

fn find_rust(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let cannot_list = || format!("cannot list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(cannot_list)? {
        let path = entry.with_context(cannot_list)?.path();
        if path.is_dir() && !path.ends_with("target") {
            find_rust(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_of_all_rules_are_sorted_and_name_their_line() {
        let a = "//! A.\n\n#[allow(dead_code)]\nstruct A;\n";
        let b = "//! B.\nuse std::fs;\n";
        let sources = [("b.rs", b), ("a.rs", a)]
            .map(|(name, text)| Source::new(&format!("crates/leasehold-model/src/{name}"), text));
        let [first, second] = &violations(&sources)[..] else {
            panic!("expected one violation for each file")
        };
        assert!(first.to_string().starts_with("crates/leasehold-model/src/a.rs:3: "));
        assert!(second.to_string().starts_with("crates/leasehold-model/src/b.rs:2: "));
    }
}
