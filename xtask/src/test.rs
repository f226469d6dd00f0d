//! `cargo xtask test`: all checks of a change in a fixed order, up to the first failure.

mod features;
mod report;

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use anyhow::{Context, Result};

use crate::engines::{ScopedEngines, Skip};
use crate::{check, deny};
use report::{NotApplicable, TestCounts};

/// Runs the steps, and prints their durations, the number of tests, and the cases that did not apply.
pub(crate) fn run(root: &Path, filter: Option<&str>, skip: &Skip) -> Result<ExitCode> {
    let mut results = Vec::new();
    let mut tests = Tests::new(root)?;
    let mut code = 0;
    for step in steps(filter, &skip.tests()) {
        println!("\n==> {step}");
        let start = Instant::now();
        // Started only when needed: an earlier failure costs no start.
        let needs_engines = matches!(step.action, Action::Tests(_));
        let engines = needs_engines.then(|| ScopedEngines::new(root, skip)).transpose()?;
        let variables = engines.as_ref().map_or(&[][..], |engines| &engines.variables);
        code = step.run(root, variables, &mut tests)?;
        drop(engines);
        results.push(StepResult { step, took: start.elapsed(), code });
        if code != 0 {
            break;
        }
    }
    print_table(&results);
    tests.print(skip)?;
    Ok(ExitCode::from(code))
}

struct StepResult {
    step: Step,
    took: Duration,
    code: u8,
}

fn print_table(results: &[StepResult]) {
    println!("\n{:<8} {:>8}  result", "step", "seconds");
    for StepResult { step, took, code } in results {
        let result = if *code == 0 { "ok".into() } else { format!("failed (exit code {code})") };
        println!("{:<8} {:>8.1}  {result}", step.name, took.as_secs_f64());
    }
    println!();
}

/// What the tests of a run report.
struct Tests {
    counts: TestCounts,
    /// File to which tests add the cases that do not apply to an engine or to this machine.
    not_applicable: std::path::PathBuf,
}

impl Tests {
    fn new(root: &Path) -> Result<Self> {
        let not_applicable = crate::engines::target(root).join("not-applicable.tsv");
        match fs::remove_file(&not_applicable) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", not_applicable.display()))?;
            }
            _ => {}
        }
        Ok(Self { counts: TestCounts::default(), not_applicable })
    }

    fn print(&self, skip: &Skip) -> Result<()> {
        if !self.counts.has_run() {
            return Ok(());
        }
        if self.not_applicable.exists() {
            println!("{}", NotApplicable::read(&fs::read_to_string(&self.not_applicable)?));
        }
        println!("{}", self.counts);
        if !skip.list().is_empty() {
            println!("not run, because of --skip: the tests of {}", skip.list());
        }
        Ok(())
    }
}

/// Step: its name for the table, and its action.
struct Step {
    name: &'static str,
    action: Action,
}

enum Action {
    /// The source rules, in this process.
    Check,
    /// The rules for dependencies, in this process.
    Deny,
    /// Each feature of each published package alone.
    Features,
    /// Cargo command whose output goes directly to the terminal.
    Cargo(Vec<String>),
    /// Cargo command whose output is also read to count the tests.
    Tests(Vec<String>),
}

/// Returns the steps, cheap ones first, so that a misformatted file is reported within a second.
///
/// All other steps that compile use the same features and profile, so that they share build artifacts.
/// Tests whose name contains one of `skipped` do not run, and are not counted as passed.
fn steps(filter: Option<&str>, skipped: &[&str]) -> Vec<Step> {
    // All test binaries run even if one fails, so that the count is complete.
    let mut tests = arguments("test --workspace --all-features --no-fail-fast");
    tests.extend(filter.map(str::to_owned));
    if !skipped.is_empty() {
        tests.push("--".to_owned());
        tests.extend(skipped.iter().flat_map(|name| ["--skip".to_owned(), (*name).to_owned()]));
    }
    let clippy = arguments("clippy --workspace --all-targets --all-features -- -D warnings");
    let doc = arguments("doc --no-deps --workspace --all-features");
    [
        ("fmt", Action::Cargo(arguments("fmt --all --check"))),
        ("check", Action::Check),
        ("deny", Action::Deny),
        ("clippy", Action::Cargo(clippy)),
        ("features", Action::Features),
        ("test", Action::Tests(tests)),
        ("doc", Action::Cargo(doc)),
    ]
    .map(|(name, action)| Step { name, action })
    .into()
}

fn arguments(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

impl Step {
    /// Runs the step to completion; returns its exit code.
    fn run(&self, root: &Path, variables: &[(String, String)], tests: &mut Tests) -> Result<u8> {
        match &self.action {
            Action::Check => Ok(u8::from(!check::passes(root)?)),
            Action::Deny => Ok(u8::from(!deny::passes(root)?)),
            Action::Features => {
                for args in features::checks(root)? {
                    println!("cargo {}", args.join(" "));
                    let code = exit_code(start(&mut cargo(root, &args))?.wait())?;
                    if code != 0 {
                        return Ok(code);
                    }
                }
                Ok(0)
            }
            Action::Cargo(args) => exit_code(start(&mut cargo(root, args))?.wait()),
            Action::Tests(args) => {
                let mut cargo = cargo(root, args);
                cargo.envs(variables.iter().map(|(name, value)| (name, value)));
                cargo.env("LEASEHOLD_TEST_NOT_APPLICABLE", &tests.not_applicable);
                run_tests(start(cargo.stdout(Stdio::piped()))?, &mut tests.counts)
            }
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
            Action::Features => f.write_str("cargo check with each feature alone"),
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

    fn typed(filter: Option<&str>, skipped: &[&str]) -> Vec<String> {
        steps(filter, skipped).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_filter_and_skipped_tests_reach_the_tests_and_nothing_else() {
        let (plain, filtered) = (typed(None, &[]), typed(Some("an_old_token"), &["engines::redis"]));
        let changed: Vec<_> = plain.iter().zip(&filtered).filter(|(a, b)| a != b).collect();
        assert_eq!(changed.len(), 1);
        assert_eq!(*changed[0].1, format!("{} an_old_token -- --skip engines::redis", changed[0].0));
    }

    #[test]
    fn output_that_is_not_text_is_forwarded_and_counted() {
        let mut counts = TestCounts::default();
        let output = b"\xff\xfe\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        let mut shown = Vec::new();
        forward(&output[..], &mut shown, &mut counts).unwrap();
        assert_eq!(shown, output);
        assert_eq!(counts.to_string(), "2 passed, 0 failed, 0 ignored, 0 filtered out");
    }
}
