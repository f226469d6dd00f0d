//! Who may know whom: floors and engines of the library, clocks, drivers and exit codes.

use super::Complaint;
use super::layout::{LIBRARY, Layout, STORE, engine_of};
use super::paths::{Mention, mentions};
use super::source::{Source, find_word};

pub(super) const RULES: [fn(&Source, &Layout) -> Vec<Complaint>; 6] = [
    model_is_pure,
    store_does_not_know_client,
    engines_do_not_know_each_other,
    one_file_reads_clocks,
    edges_hold_no_drivers,
    one_file_knows_exit_codes,
];

const MODEL: &str = "crates/leasehold-model/src";
const TESTING: &str = "crates/leasehold/src/testing";
const CLOCK: &str = "crates/leasehold/src/store/clock.rs";
const CLI: &str = "crates/leasehold-cli/src";
const EXIT: &str = "crates/leasehold-cli/src/exit.rs";
const EDGES: [&str; 2] = [CLI, "crates/leasehold-server/src"];

/// What reads or changes the world outside: a rule that needs it belongs in a store or a client.
const IMPURE: [&str; 9] = [
    "tokio",
    "rusqlite",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
];

/// Calls that ask a clock for the time.
const CLOCKS: [&str; 5] =
    ["Instant::now", "SystemTime::now", "Timestamp::now", "Zoned::now", "clock_gettime"];

/// Crates that talk to an engine.
const DRIVERS: [&str; 6] =
    ["rusqlite", "tokio_postgres", "deadpool_postgres", "redis", "aws_sdk_dynamodb", "reqwest"];

fn model_is_pure(source: &Source, _: &Layout) -> Vec<Complaint> {
    let impure = |mention: &Mention| IMPURE.iter().any(|path| mention.is_under(path));
    let text = "the model is pure: no I/O, no clock, no async; take the value as an argument instead";
    complain_in(MODEL, source, impure, text)
}

fn store_does_not_know_client(source: &Source, layout: &Layout) -> Vec<Complaint> {
    let above = |mention: &Mention| layout.leads_to(mention, "client");
    let text = "a store may not know the client; move what both need down into store/";
    complain_in(STORE, source, above, text)
}

fn engines_do_not_know_each_other(source: &Source, layout: &Layout) -> Vec<Complaint> {
    let Some(own) = engine_of(source) else {
        return Vec::new();
    };
    let is_other = |mention: &Mention| {
        let mut others = layout.engines.iter().filter(|engine| *engine != own);
        others.any(|engine| mention.is_under(&format!("crate::store::{engine}")))
    };
    let text = "an engine may not know another engine; move what both need up into store/ \
                (a folder of store/ that is no engine is named in xtask/src/check/layout.rs)";
    complain_in(STORE, source, is_other, text)
}

fn one_file_reads_clocks(source: &Source, _: &Layout) -> Vec<Complaint> {
    if source.path == CLOCK || source.is_in(TESTING) {
        return Vec::new();
    }
    let reads = |mention: &Mention| CLOCKS.iter().any(|call| mention.ends_with(call));
    let text = format!("only {CLOCK} reads clocks; call it, or take the time as an argument");
    complain_in(LIBRARY, source, reads, &text)
}

fn edges_hold_no_drivers(source: &Source, _: &Layout) -> Vec<Complaint> {
    let drives = |mention: &Mention| DRIVERS.iter().any(|driver| mention.is_under(driver));
    let text = "only the library talks to an engine; use its public API";
    EDGES.iter().flat_map(|edge| complain_in(edge, source, drives, text)).collect()
}

fn one_file_knows_exit_codes(source: &Source, _: &Layout) -> Vec<Complaint> {
    if !source.is_in(CLI) || source.path == EXIT {
        return Vec::new();
    }
    let text =
        format!("only {EXIT} knows exit codes as numbers; give the code a name there and use the name");
    let numbered = source.shipped_lines().filter(|(_, line)| is_numbered_exit(line));
    numbered.map(|(line, _)| source.complaint(line, text.clone())).collect()
}

fn is_numbered_exit(line: &str) -> bool {
    ["exit(", "_exit(", "ExitCode::from("].iter().any(|call| {
        let argument = find_word(line, call).map_or("", |at| &line[at + call.len()..]);
        argument.starts_with(|c: char| c == '-' || c.is_ascii_digit())
    })
}

/// The complaint for each path that is `wrong`, if the file lies in the folder.
fn complain_in(
    folder: &str,
    source: &Source,
    wrong: impl Fn(&Mention) -> bool,
    text: &str,
) -> Vec<Complaint> {
    if !source.is_in(folder) {
        return Vec::new();
    }
    let complain = |mention: Mention| source.complaint(mention.line, format!("`{}`: {text}", mention.name()));
    mentions(source).into_iter().filter(wrong).map(complain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    /// The lines that any rule complains about, in a small tree around the file.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        let lib = "pub use client::{Guard, Leasehold};\npub use store::Store;\n";
        let around = [("lib.rs", lib), ("store/memory/mod.rs", ""), ("store/sqlite/mod.rs", "")]
            .map(|(name, text)| Source::new(&format!("{LIBRARY}/{name}"), text));
        let (source, layout) = (Source::new(path, text), Layout::of(&around));
        let complaints = RULES.iter().flat_map(|rule| rule(&source, &layout));
        complaints.map(|complaint| complaint.line).collect()
    }

    fn library(name: &str, text: &str) -> Vec<usize> {
        lines(&format!("{LIBRARY}/{name}"), text)
    }

    #[test]
    fn the_model_is_pure() {
        let model = |text: &str| lines(&format!("{MODEL}/rules.rs"), text);
        for import in IMPURE {
            assert_eq!(model(&format!("use {import};\n")), [1], "{import}");
        }
        assert_eq!(model("use std::time::{Duration, SystemTime};\n"), [1]);
        assert_eq!(model("use std::time::Duration;\nuse std::fmt;\n"), NONE);
        assert_eq!(library("store/cas.rs", "use tokio::sync::Notify;\n"), NONE);
    }

    #[test]
    fn a_store_does_not_know_the_client() {
        let store = |text| library("store/cas.rs", text);
        assert_eq!(store("use crate::client::Guard;\nuse crate::Leasehold;\n"), [1, 2]);
        assert_eq!(store("use crate::model::Token;\nuse super::Store;\n"), NONE);
        assert_eq!(library("client/guard.rs", "use crate::store::Store;\n"), NONE);
    }

    #[test]
    fn an_engine_does_not_know_another() {
        let sqlite = |text| library("store/sqlite/locks.rs", text);
        assert_eq!(sqlite("use crate::store::memory::M;\n"), [1]);
        assert_eq!(sqlite("use super::super::{cas, memory};\n"), [1]);
        assert_eq!(sqlite("use crate::store::{cas, sqlite::schema, wake};\n"), NONE);
        assert_eq!(library("store/connect.rs", "use super::{memory, sqlite};\n"), NONE);
    }

    #[test]
    fn one_file_reads_clocks() {
        let reads = "fn f() {\n    std::time::SystemTime::now();\n    Instant::now();\n}\n";
        let test = format!("#[cfg(test)]\nmod tests {{\n{reads}}}\n");
        assert_eq!(library("client/guard.rs", reads), [2, 3]);
        assert_eq!(library("store/host.rs", "use rustix::time::clock_gettime;\n"), [1]);
        assert_eq!(library("client/guard.rs", &test), NONE);
        assert_eq!(library("testing/time.rs", reads), NONE);
        assert_eq!(lines(CLOCK, reads), NONE);
        assert_eq!(lines(&format!("{CLI}/run/child.rs"), reads), NONE);
    }

    #[test]
    fn the_edges_hold_no_drivers() {
        for edge in EDGES {
            let edge = |text| lines(&format!("{edge}/main.rs"), text);
            assert_eq!(edge("use leasehold::connect;\nuse rusqlite::Connection;\n"), [2]);
            assert_eq!(edge("fn f() {\n    let redis = 1;\n}\n"), NONE);
        }
        assert_eq!(library("store/sqlite/mod.rs", "use rusqlite::Connection;\n"), NONE);
    }

    #[test]
    fn one_file_knows_exit_codes() {
        let cli = |text| lines(&format!("{CLI}/run/child.rs"), text);
        let numbers = "std::process::exit(75);\nExitCode::from(1);\nlibc::_exit(-1);\n";
        assert_eq!(cli(numbers), [1, 2, 3]);
        assert_eq!(lines(EXIT, numbers), NONE);
        assert_eq!(cli("std::process::exit(code);\nExitCode::from(LOST);\n"), NONE);
    }
}
