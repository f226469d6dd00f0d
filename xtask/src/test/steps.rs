//! Steps of `cargo xtask test`.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

use super::counts::TestCounts;
use crate::{check, deny};

/// Step: its name for the table, and its action.
pub(super) struct Step {
    pub(super) name: &'static str,
    action: Action,
}

enum Action {
    /// The source rules, in this process.
    Check,
    /// The rules for dependencies, in this process.
    Deny,
    /// Cargo command whose output goes directly to the terminal.
    Cargo(Vec<String>),
    /// Cargo command whose output is also read to count the tests.
    Tests(Vec<String>),
}

/// Returns the steps, cheap ones first, so that a misformatted file is reported within a second.
///
/// All steps that compile use the same features and profile, so that they share build artifacts.
pub(super) fn steps(filter: Option<&str>) -> Vec<Step> {
    // All test binaries run even if one fails, so that the count is complete.
    let tests = arguments("test --workspace --all-features --no-fail-fast");
    let clippy = arguments("clippy --workspace --all-targets --all-features -- -D warnings");
    let doc = arguments("doc --no-deps --workspace --all-features");
    vec![
        Step::new("fmt", Action::Cargo(arguments("fmt --all --check").collect())),
        Step::new("check", Action::Check),
        Step::new("deny", Action::Deny),
        Step::new("clippy", Action::Cargo(clippy.collect())),
        Step::new("test", Action::Tests(tests.chain(filter.map(str::to_owned)).collect())),
        Step::new("doc", Action::Cargo(doc.collect())),
    ]
}

fn arguments(line: &str) -> impl Iterator<Item = String> {
    line.split(' ').map(str::to_owned)
}

impl Step {
    fn new(name: &'static str, action: Action) -> Self {
        Self { name, action }
    }

    /// Whether the step needs engines.
    pub(super) fn needs_engines(&self) -> bool {
        matches!(self.action, Action::Tests(_))
    }

    /// Runs the step to completion; returns its exit code.
    pub(super) fn run(
        &self,
        root: &Path,
        variables: &[(String, String)],
        counts: &mut TestCounts,
    ) -> Result<u8> {
        let cargo = |args| {
            let mut cargo = cargo(root, args);
            cargo.envs(variables.iter().map(|(name, value)| (name, value)));
            cargo
        };
        match &self.action {
            Action::Check => Ok(u8::from(!check::passes(root)?)),
            Action::Deny => Ok(u8::from(!deny::passes(root)?)),
            Action::Cargo(args) => exit_code(start(&mut cargo(args))?.wait()),
            Action::Tests(args) => run_tests(start(cargo(args).stdout(Stdio::piped()))?, counts),
        }
    }
}

fn run_tests(mut cargo: Child, counts: &mut TestCounts) -> Result<u8> {
    let output = cargo.stdout.take().expect("cargo was started with piped stdout");
    forward(BufReader::new(output), io::stdout(), counts)
        .context("cannot forward the output of cargo test")?;
    let code = exit_code(cargo.wait())?;
    if code == 0 && !counts.has_run() {
        eprintln!("no test ran: check that the filter matches the name of a test");
        return Ok(1);
    }
    Ok(code)
}

/// Formats the step as a command line.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.action {
            Action::Check => f.write_str("cargo xtask check"),
            Action::Deny => f.write_str("cargo xtask deny"),
            Action::Cargo(args) | Action::Tests(args) => write!(f, "cargo {}", args.join(" ")),
        }
    }
}

fn cargo(root: &Path, args: &[String]) -> Command {
    // Cargo sets `CARGO` for the programs that it runs.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.args(args).env("RUSTDOCFLAGS", "-D warnings").current_dir(root);
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // Most tests wait for an engine or for a lease to expire.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        cargo.env("RUST_TEST_THREADS", (cores * 2).to_string());
    }
    cargo
}

fn start(cargo: &mut Command) -> Result<Child> {
    let name = cargo.get_program().display().to_string();
    cargo.spawn().with_context(|| format!("cannot start {name}: install the Rust toolchain"))
}

/// Forwards the runner's output line by line, and counts the tests in it.
fn forward(mut from: impl BufRead, mut to: impl Write, counts: &mut TestCounts) -> io::Result<()> {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        counts.read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(())
}

/// Returns the exit code; 1 for a command that was killed.
fn exit_code(status: io::Result<ExitStatus>) -> Result<u8> {
    let status = status.context("cannot wait for cargo")?;
    Ok(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_reaches_the_tests_and_nothing_else() {
        let typed = |filter| steps(filter).iter().map(ToString::to_string).collect::<Vec<_>>();
        let (plain, filtered) = (typed(None), typed(Some("an_old_token")));
        let changed: Vec<_> = plain.iter().zip(&filtered).filter(|(a, b)| a != b).collect();
        assert_eq!(changed.len(), 1);
        assert_eq!(*changed[0].1, format!("{} an_old_token", changed[0].0));
    }

    #[test]
    fn output_that_is_not_text_is_forwarded_and_counted() {
        let mut counts = TestCounts::default();
        let output = b"\xff\xfe\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        let mut shown = Vec::new();
        forward(&output[..], &mut shown, &mut counts).unwrap();
        assert_eq!(shown, output);
        assert_eq!(counts.to_string(), "2 passed, 0 failed");
    }
}
