//! The steps of `cargo xtask test`, and how one is run.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

use super::tally::Tally;
use crate::{check, deny};

/// One step: a name for the table and what it does.
pub(super) struct Step {
    pub(super) name: &'static str,
    work: Work,
}

enum Work {
    /// Our own source rules, in this process.
    Check,
    /// The rules of dependencies, in this process.
    Deny,
    /// A cargo command whose output goes straight to the terminal.
    Cargo(Vec<String>),
    /// A cargo command whose output is also read for the count of tests.
    Tests(Vec<String>),
}

/// The cheap ones come first: a misformatted file is known in a second, not after the tests.
///
/// Every step that compiles asks for the same features and profile, so that they share what cargo has built.
pub(super) fn steps(filter: Option<&str>) -> Vec<Step> {
    // All test binaries run even if one fails: the count is of the whole.
    let tests = words("test --workspace --all-features --no-fail-fast");
    let clippy = words("clippy --workspace --all-targets --all-features -- -D warnings");
    let doc = words("doc --no-deps --workspace --all-features");
    vec![
        Step::new("fmt", Work::Cargo(words("fmt --all --check").collect())),
        Step::new("check", Work::Check),
        Step::new("deny", Work::Deny),
        Step::new("clippy", Work::Cargo(clippy.collect())),
        Step::new("test", Work::Tests(tests.chain(filter.map(str::to_owned)).collect())),
        Step::new("doc", Work::Cargo(doc.collect())),
    ]
}

fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(' ').map(str::to_owned)
}

impl Step {
    fn new(name: &'static str, work: Work) -> Self {
        Self { name, work }
    }

    /// Whether it talks to engines.
    pub(super) fn needs_engines(&self) -> bool {
        matches!(self.work, Work::Tests(_))
    }

    /// Runs it to its end; the answer is its exit code.
    pub(super) fn run(&self, root: &Path, variables: &[(String, String)], tally: &mut Tally) -> Result<u8> {
        let cargo = |args| {
            let mut cargo = cargo(root, args);
            cargo.envs(variables.iter().map(|(name, value)| (name, value)));
            cargo
        };
        match &self.work {
            Work::Check => Ok(u8::from(!check::passes(root)?)),
            Work::Deny => Ok(u8::from(!deny::passes(root)?)),
            Work::Cargo(args) => exit_code(start(&mut cargo(args))?.wait()),
            Work::Tests(args) => run_tests(start(cargo(args).stdout(Stdio::piped()))?, tally),
        }
    }
}

fn run_tests(mut cargo: Child, tally: &mut Tally) -> Result<u8> {
    let output = cargo.stdout.take().expect("it was started with a pipe");
    pass_on(BufReader::new(output), io::stdout(), tally).context("cannot pass on what cargo test prints")?;
    let code = exit_code(cargo.wait())?;
    if code == 0 && !tally.has_run() {
        eprintln!("no test ran: does the filter match the name of a test?");
        return Ok(1);
    }
    Ok(code)
}

/// What the step would be if it were typed.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            Work::Check => f.write_str("cargo xtask check"),
            Work::Deny => f.write_str("cargo xtask deny"),
            Work::Cargo(args) | Work::Tests(args) => write!(f, "cargo {}", args.join(" ")),
        }
    }
}

fn cargo(root: &Path, args: &[String]) -> Command {
    // Cargo names itself to what it runs; only a binary started by hand has to look on the PATH.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.args(args).env("RUSTDOCFLAGS", "-D warnings").current_dir(root);
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // Most tests wait for an engine or for a lease to end.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        cargo.env("RUST_TEST_THREADS", (cores * 2).to_string());
    }
    cargo
}

fn start(cargo: &mut Command) -> Result<Child> {
    let name = cargo.get_program().display().to_string();
    cargo.spawn().with_context(|| format!("cannot start {name}: install the Rust toolchain"))
}

/// Passes the runner's output on, line by line as it comes, and counts the tests in it.
fn pass_on(mut from: impl BufRead, mut to: impl Write, tally: &mut Tally) -> io::Result<()> {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        tally.read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(())
}

/// A command that was killed has no code of its own; it has failed all the same.
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
    fn output_that_is_not_text_is_passed_on_and_counted() {
        let mut tally = Tally::default();
        let output = b"\xff\xfe\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        let mut shown = Vec::new();
        pass_on(&output[..], &mut shown, &mut tally).unwrap();
        assert_eq!(shown, output);
        assert_eq!(tally.to_string(), "2 passed, 0 failed");
    }
}
