//! Rules about dependencies: layers and engines of the library, drivers and exit codes.

use std::collections::{BTreeMap, BTreeSet};

use super::paths::{Mention, mentions};
use super::source::{Source, Violation, find_word};

pub(super) const RULES: [fn(&Source, &Layout) -> Vec<Violation>; 4] =
    [forbidden_paths, store_does_not_use_client, engines_do_not_use_each_other, exit_codes_are_in_one_file];

const LIBRARY: &str = "crates/leasehold/src";
const STORE: &str = "crates/leasehold/src/store";
const MODEL: &str = "crates/leasehold-model/src";
const CLI: &str = "crates/leasehold-cli/src";
const EXIT: &str = "crates/leasehold-cli/src/exit.rs";
const SERVER: &str = "crates/leasehold-server/src";

/// Folders of `store/` that all engines use; any other folder there counts as an engine.
const SHARED: [&str; 4] = ["cas", "instrumented", "support", "traits"];

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

/// Crates that talk to an engine.
const DRIVERS: [&str; 6] =
    ["rusqlite", "tokio_postgres", "deadpool_postgres", "redis", "aws_sdk_dynamodb", "reqwest"];

/// Folders, paths that their files must not use, and what to do instead.
const FORBIDDEN: [(&str, &[&str], &str); 3] = [
    (MODEL, &IMPURE, "the model is pure: no I/O, no clock, no async; take the value as an argument instead"),
    (CLI, &DRIVERS, "only the library talks to an engine; use its public API"),
    (SERVER, &DRIVERS, "only the library talks to an engine; use its public API"),
];

fn forbidden_paths(source: &Source, _: &Layout) -> Vec<Violation> {
    let violations = |(folder, paths, text): &(&str, &[&str], &str)| {
        violations_in(folder, source, |mention| paths.iter().any(|path| mention.is_under(path)), text)
    };
    FORBIDDEN.iter().flat_map(violations).collect()
}

fn store_does_not_use_client(source: &Source, layout: &Layout) -> Vec<Violation> {
    let uses_client = |mention: &Mention| layout.leads_to(mention, "client");
    let text = "a store must not use the client; move the shared code down into store/";
    violations_in(STORE, source, uses_client, text)
}

fn engines_do_not_use_each_other(source: &Source, layout: &Layout) -> Vec<Violation> {
    let Some(own) = engine_of(source) else { return Vec::new() };
    let is_other = |mention: &Mention| {
        let mut others = layout.engines.iter().filter(|engine| *engine != own);
        others.any(|engine| mention.is_under(&format!("crate::store::{engine}")))
    };
    let text = "an engine must not use another engine; move the shared code into store/support/ \
                (folders of store/ that are not engines are listed in xtask/src/check/layers.rs)";
    violations_in(STORE, source, is_other, text)
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

/// Engines of the library, and what `lib.rs` exports.
pub(super) struct Layout {
    engines: BTreeSet<String>,
    /// Names that `lib.rs` exports, and the layer of each.
    layer_of: BTreeMap<String, String>,
}

impl Layout {
    pub(super) fn of(sources: &[Source]) -> Self {
        let engines = sources.iter().filter_map(engine_of).map(str::to_owned).collect();
        let lib = sources.iter().filter(|source| source.path == format!("{LIBRARY}/lib.rs"));
        let layer_of = lib.flat_map(mentions).filter_map(export).collect();
        Self { engines, layer_of }
    }

    /// Whether the path leads to the layer, directly or by a name that `lib.rs` exports.
    fn leads_to(&self, mention: &Mention, layer: &str) -> bool {
        let by_name = || mention.segments.get(1).and_then(|name| self.layer_of.get(name));
        mention.is_under(&format!("crate::{layer}"))
            || (mention.is_under("crate") && by_name().is_some_and(|from| from == layer))
    }
}

/// Returns the engine of a file: `crates/leasehold/src/store/sqlite/schema.rs` belongs to `sqlite`.
fn engine_of(source: &Source) -> Option<&str> {
    let inside = source.path.strip_prefix(STORE)?.strip_prefix('/')?;
    let (folder, _) = inside.split_once('/')?;
    (!SHARED.contains(&folder)).then_some(folder)
}

/// Returns the name and the layer of an export: `pub use client::Leasehold` exports `Leasehold` from
/// `client`.
fn export(mention: Mention) -> Option<(String, String)> {
    let skip = usize::from(mention.is_under("crate"));
    let mut segments = mention.segments.into_iter().skip(skip);
    let layer = segments.next().filter(|layer| ["model", "store", "client"].contains(&layer.as_str()))?;
    Some((segments.next_back()?, layer))
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
    fn the_frontends_use_no_drivers() {
        for frontend in [CLI, SERVER] {
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

    #[test]
    fn an_engine_is_a_folder_of_its_own() {
        let engine = |path: &str| engine_of(&Source::new(path, "")).map(str::to_owned);
        assert_eq!(engine("crates/leasehold/src/store/sqlite/sql/lock.rs").as_deref(), Some("sqlite"));
        for path in
            ["store/connect.rs", "store/cas/locks.rs", "store/support/wake/waiters.rs", "client/guard/mod.rs"]
        {
            assert_eq!(engine(&format!("{LIBRARY}/{path}")), None, "{path}");
        }
    }

    #[test]
    fn a_name_that_lib_exports_belongs_to_its_layer() {
        let lib =
            "pub use error::Error;\npub use client::{Guard, locks::Lock};\npub use crate::model::Token;\n";
        let layout = Layout::of(&[Source::new("crates/leasehold/src/lib.rs", lib)]);
        let layer = |name: &str| layout.layer_of.get(name).map(String::as_str);
        assert_eq!(["Guard", "Lock"].map(layer), [Some("client"); 2]);
        assert_eq!([layer("Token"), layer("Error")], [Some("model"), None]);
    }
}
