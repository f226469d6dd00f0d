//! Generated pages of `docs/reference/`: each is what the code says today. With `LEASEHOLD_WRITE_DOCS=1`
//! (`cargo xtask docs --update`) the tests rewrite the pages.

mod api;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::help::COMMANDS;
use super::support::Sandbox;

const WRITE: &str = "LEASEHOLD_WRITE_DOCS";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a page with what was generated, or rewrites it.
fn check(name: &str, generated: &str) {
    let page = root().join("docs/reference").join(name);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&page, generated).unwrap();
    }
    let found = std::fs::read_to_string(&page).unwrap_or_default();
    let line = found.lines().zip(generated.lines()).position(|(found, generated)| found != generated);
    assert!(
        found == generated,
        "docs/reference/{name} is not current, first at line {}: run `cargo xtask docs --update`",
        line.map_or_else(|| found.lines().count().min(generated.lines().count()) + 1, |line| line + 1),
    );
}

#[test]
fn the_page_of_commands_is_what_help_prints() {
    let sandbox = Sandbox::new();
    let mut page = "# Command line\n\n\
        <!-- Generated from the help of the binary by `cargo xtask docs --update`. Do not edit. -->\n\n\
        Each section is the output of `leasehold COMMAND --help`, without the\n\
        [options that every command has](#leasehold).\n"
        .to_owned();
    for command in COMMANDS {
        let help = sandbox.ok(&format!("{command} --help"));
        let (about, usage) = help.split_once("Usage:").unwrap_or_else(|| panic!("{command}: {help}"));
        let usage = format!("Usage:{usage}");
        let usage = if command.is_empty() { usage } else { without_section(&usage, "Global options:") };
        let heading = format!("leasehold {command}");
        let _ = write!(
            page,
            "\n## {}\n\n{}\n\n```text\n{}\n```\n",
            heading.trim(),
            about.trim().replace('<', "\\<").replace('*', "\\*"),
            usage.trim_end()
        );
    }
    check("cli.md", &page);
}

/// Removes a section of a help text: its heading and the indented lines below.
fn without_section(help: &str, heading: &str) -> String {
    let mut kept = String::new();
    let mut is_inside = false;
    for line in help.lines() {
        is_inside = line == heading || is_inside && (line.is_empty() || line.starts_with(' '));
        if !is_inside {
            kept.extend([line, "\n"]);
        }
    }
    kept
}

#[test]
fn the_page_of_the_api_is_the_openapi_document() {
    check("api.md", &api::page());
}

/// Every variable that the source names is on the page of the environment, and no other.
#[test]
fn the_page_of_the_environment_names_every_variable() {
    let mut named = BTreeSet::new();
    for folder in ["leasehold", "leasehold-cli", "leasehold-server"] {
        variables_in(&root().join("crates").join(folder).join("src"), &mut named);
    }
    // For tests of this project: CONTRIBUTING.md describes them.
    named.retain(|name| !["_TEST_", "_FUZZ_", "_NO_SUCH"].iter().any(|part| name.contains(part)));
    let page = std::fs::read_to_string(root().join("docs/reference/environment.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `LEASEHOLD_"));
    let documented: BTreeSet<String> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split(',').map(|name| name.trim().trim_matches('`')))
        .map(str::to_owned)
        .collect();
    assert_eq!(documented, named);
}

fn variables_in(folder: &Path, into: &mut BTreeSet<String>) {
    for path in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            variables_in(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for (at, prefix) in text.match_indices("LEASEHOLD_") {
                let rest = &text[at + prefix.len()..];
                let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
                if end > 0 {
                    into.insert(format!("{prefix}{}", &rest[..end]));
                }
            }
        }
    }
}
