//! Rules about dependencies: layers and engines of the library, clocks, drivers and exit codes.

use super::layout::{LIBRARY, Layout, STORE, engine_of};
use super::paths::{Mention, mentions};
use super::source::{Source, Violation, find_word};

pub(super) const RULES: [fn(&Source, &Layout) -> Vec<Violation>; 6] = [
    model_is_pure,
    store_does_not_use_client,
    engines_do_not_use_each_other,
    clocks_are_read_in_one_file,
    frontends_use_no_drivers,
    exit_codes_are_in_one_file,
];

const MODEL: &str = "crates/leasehold-model/src";
const TESTING: &str = "crates/leasehold/src/testing";
const CLOCK: &str = "crates/leasehold/src/store/support/clock.rs";
const CLI: &str = "crates/leasehold-cli/src";
const EXIT: &str = "crates/leasehold-cli/src/exit.rs";
const FRONTENDS: [&str; 2] = [CLI, "crates/leasehold-server/src"];

/// Paths with I/O, clocks or async; code that needs them belongs in a store or a client.
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

/// Calls that read a clock.
const CLOCKS: [&str; 5] =
    ["Instant::now", "SystemTime::now", "Timestamp::now", "Zoned::now", "clock_gettime"];

/// Crates that talk to an engine.
const DRIVERS: [&str; 6] =
    ["rusqlite", "tokio_postgres", "deadpool_postgres", "redis", "aws_sdk_dynamodb", "reqwest"];

fn model_is_pure(source: &Source, _: &Layout) -> Vec<Violation> {
    let impure = |mention: &Mention| IMPURE.iter().any(|path| mention.is_under(path));
    let text = "the model is pure: no I/O, no clock, no async; take the value as an argument instead";
    violations_in(MODEL, source, impure, text)
}

fn store_does_not_use_client(source: &Source, layout: &Layout) -> Vec<Violation> {
    let uses_client = |mention: &Mention| layout.leads_to(mention, "client");
    let text = "a store must not use the client; move the shared code down into store/";
    violations_in(STORE, source, uses_client, text)
}

fn engines_do_not_use_each_other(source: &Source, layout: &Layout) -> Vec<Violation> {
    let Some(own) = engine_of(source) else {
        return Vec::new();
    };
    let is_other = |mention: &Mention| {
        let mut others = layout.engines.iter().filter(|engine| *engine != own);
        others.any(|engine| mention.is_under(&format!("crate::store::{engine}")))
    };
    let text = "an engine must not use another engine; move the shared code into store/support/ \
                (folders of store/ that are not engines are listed in xtask/src/check/layout.rs)";
    violations_in(STORE, source, is_other, text)
}

fn clocks_are_read_in_one_file(source: &Source, _: &Layout) -> Vec<Violation> {
    if source.path == CLOCK || source.is_in(TESTING) {
        return Vec::new();
    }
    let reads = |mention: &Mention| CLOCKS.iter().any(|call| mention.ends_with(call));
    let text = format!("only {CLOCK} reads clocks; call it, or take the time as an argument");
    violations_in(LIBRARY, source, reads, &text)
}

fn frontends_use_no_drivers(source: &Source, _: &Layout) -> Vec<Violation> {
    let is_driver = |mention: &Mention| DRIVERS.iter().any(|driver| mention.is_under(driver));
    let text = "only the library talks to an engine; use its public API";
    FRONTENDS.iter().flat_map(|frontend| violations_in(frontend, source, is_driver, text)).collect()
}

fn exit_codes_are_in_one_file(source: &Source, _: &Layout) -> Vec<Violation> {
    if !source.is_in(CLI) || source.path == EXIT {
        return Vec::new();
    }
    let text = format!("exit codes are numbers only in {EXIT}; name the code there and use the name");
    let numbered = source.shipped_lines().filter(|(_, line)| is_numbered_exit(line));
    numbered.map(|(line, _)| source.violation(line, text.clone())).collect()
}

fn is_numbered_exit(line: &str) -> bool {
    ["exit(", "_exit(", "ExitCode::from("].iter().any(|call| {
        let argument = find_word(line, call).map_or("", |at| &line[at + call.len()..]);
        argument.starts_with(|c: char| c == '-' || c.is_ascii_digit())
    })
}

/// Returns a violation for each path that is `forbidden`, if the file is in the folder.
fn violations_in(
    folder: &str,
    source: &Source,
    forbidden: impl Fn(&Mention) -> bool,
    text: &str,
) -> Vec<Violation> {
    if !source.is_in(folder) {
        return Vec::new();
    }
    let violation =
        |mention: Mention| source.violation(mention.line, format!("`{}`: {text}", mention.name()));
    mentions(source).into_iter().filter(forbidden).map(violation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    /// Returns the lines with violations of any rule, in a small tree around the file.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        let lib = "pub use client::{Guard, Leasehold};\npub use store::Store;\n";
        let around = [("lib.rs", lib), ("store/memory/mod.rs", ""), ("store/sqlite/mod.rs", "")]
            .map(|(name, text)| Source::new(&format!("{LIBRARY}/{name}"), text));
        let (source, layout) = (Source::new(path, text), Layout::of(&around));
        let violations = RULES.iter().flat_map(|rule| rule(&source, &layout));
        violations.map(|violation| violation.line).collect()
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
        assert_eq!(library("store/cas/locks.rs", "use tokio::sync::Notify;\n"), NONE);
    }

    #[test]
    fn a_store_does_not_use_the_client() {
        let store = |text| library("store/cas/locks.rs", text);
        assert_eq!(store("use crate::client::Guard;\nuse crate::Leasehold;\n"), [1, 2]);
        assert_eq!(store("use crate::model::Token;\nuse super::Store;\n"), NONE);
        assert_eq!(library("client/guard.rs", "use crate::store::Store;\n"), NONE);
    }

    #[test]
    fn an_engine_does_not_use_another() {
        let sqlite = |text| library("store/sqlite/locks.rs", text);
        assert_eq!(sqlite("use crate::store::memory::M;\n"), [1]);
        assert_eq!(sqlite("use super::super::{cas, memory};\n"), [1]);
        assert_eq!(sqlite("use crate::store::{cas, sqlite::schema, wake};\n"), NONE);
        assert_eq!(library("store/connect.rs", "use super::{memory, sqlite};\n"), NONE);
    }

    #[test]
    fn clocks_are_read_in_one_file() {
        let reads = "fn f() {\n    std::time::SystemTime::now();\n    Instant::now();\n}\n";
        let test = format!("#[cfg(test)]\nmod tests {{\n{reads}}}\n");
        assert_eq!(library("client/guard.rs", reads), [2, 3]);
        assert_eq!(library("store/support/host.rs", "use rustix::time::clock_gettime;\n"), [1]);
        assert_eq!(library("client/guard.rs", &test), NONE);
        assert_eq!(library("testing/time.rs", reads), NONE);
        assert_eq!(lines(CLOCK, reads), NONE);
        assert_eq!(lines(&format!("{CLI}/run/child.rs"), reads), NONE);
    }

    #[test]
    fn the_frontends_use_no_drivers() {
        for frontend in FRONTENDS {
            let frontend = |text| lines(&format!("{frontend}/main.rs"), text);
            assert_eq!(frontend("use leasehold::connect;\nuse rusqlite::Connection;\n"), [2]);
            assert_eq!(frontend("fn f() {\n    let redis = 1;\n}\n"), NONE);
        }
        assert_eq!(library("store/sqlite/mod.rs", "use rusqlite::Connection;\n"), NONE);
    }

    #[test]
    fn exit_codes_are_in_one_file() {
        let cli = |text| lines(&format!("{CLI}/run/child.rs"), text);
        let numbers = "std::process::exit(75);\nExitCode::from(1);\nlibc::_exit(-1);\n";
        assert_eq!(cli(numbers), [1, 2, 3]);
        assert_eq!(lines(EXIT, numbers), NONE);
        assert_eq!(cli("std::process::exit(code);\nExitCode::from(LOST);\n"), NONE);
    }
}
