//! `cargo xtask bench`: builds release binaries, starts the engines and runs the benchmarks.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::cargo::{cargo, start, wait};
use crate::engines::ScopedEngines;

pub(crate) fn run(root: &Path, args: &[OsString]) -> Result<ExitCode> {
    // `leasehold run` is built alone, as it is released, so that no feature of the benchmarks is enabled.
    let starts_commands = args.first().is_some_and(|bench| bench == "locks");
    let mut build = cargo(root, ["build", "--release", "--quiet", "-p", "leasehold-cli"]);
    if starts_commands && wait(&mut start(&mut build)?)? != 0 {
        eprintln!("leasehold-cli does not build: an earlier build of `leasehold run` is measured, or none");
    }
    let engines = if wants_servers(args) { Some(ScopedEngines::durable(root)?) } else { None };
    let mut bench = cargo(root, ["run", "--release", "--quiet", "-p", "leasehold-bench", "--"]);
    bench.args(args).envs(engines.iter().flat_map(|engines| engines.variables.clone()));
    wait(&mut start(&mut bench)?).map(ExitCode::from)
}

/// Whether the loads may need a server.
fn wants_servers(args: &[OsString]) -> bool {
    let only = args.iter().skip_while(|arg| *arg != "--only").nth(1).map(|text| text.to_string_lossy());
    let help = args.iter().any(|arg| arg == "--help" || arg == "-h");
    let is_server = args.first().is_some_and(|bench| bench == "http" || bench == "dashboard");
    let needs_no_server = |only: &str| ["memory", "sqlite", "run"].iter().any(|name| only.starts_with(name));
    !is_server && !help && !only.is_some_and(|only| needs_no_server(&only))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_started_only_for_loads_that_have_one() {
        let wants = |line: &str| wants_servers(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(wants("locks"));
        assert!(wants("locks --only redis --rounds 3"));
        assert!(!wants("locks --only sqlite"));
        assert!(!wants("locks --help"));
        assert!(!wants("http --rounds 3"));
        assert!(!wants("dashboard --locks 1000"));
    }
}
