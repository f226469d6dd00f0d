//! `cargo xtask test`: all checks of a change in a fixed order, up to the first failure.

mod report;
mod timings;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cargo::{metadata, start, wait};
use crate::engines::{ScopedEngines, Skip, target};
use crate::{check, deny, site};
use report::{NotApplicable, TestCounts};
use timings::{Executables, Timings};

/// Time for cargo's last messages to arrive after its end. A process that a test has left behind may keep
/// the pipe open.
const LAST_MESSAGES: Duration = Duration::from_secs(5);

/// Runs the steps, and prints the cases that did not apply, what took the time, and the number of tests.
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
        results.push((step.name, start.elapsed(), code));
        if code != 0 {
            break;
        }
    }
    println!();
    tests.print_details()?;
    print!("{}", step_table(&results));
    tests.print_counts(skip);
    Ok(ExitCode::from(code))
}

/// Returns the table of the steps: name, duration and exit code of each, and the sum.
fn step_table(results: &[(&str, Duration, u8)]) -> String {
    let row = |(name, took, code): &(&str, Duration, u8)| {
        let result = if *code == 0 { "ok".into() } else { format!("failed (exit code {code})") };
        format!("{:>8.1}  {name:<8}  {result}\n", took.as_secs_f64())
    };
    let rows: String = results.iter().map(row).collect::<Vec<_>>().concat();
    let sum: Duration = results.iter().map(|(_, took, _)| *took).sum();
    format!("{:>8}  {:<8}  result\n{rows}{:>8.1}  in all\n", "seconds", "step", sum.as_secs_f64())
}

/// What the tests of a run report.
struct Tests {
    counts: TestCounts,
    timings: Timings,
    /// File to which tests add the cases that do not apply to an engine or to this machine.
    not_applicable: PathBuf,
}

impl Tests {
    fn new(root: &Path) -> Result<Self> {
        let not_applicable = target(root).join("not-applicable.tsv");
        match fs::remove_file(&not_applicable) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", not_applicable.display()))?;
            }
            _ => {}
        }
        Ok(Self { counts: TestCounts::default(), timings: Timings::new(test_threads()), not_applicable })
    }

    fn print_details(&self) -> Result<()> {
        if self.not_applicable.exists() {
            println!("{}", NotApplicable::read(&fs::read_to_string(&self.not_applicable)?));
        }
        if self.counts.has_run() {
            println!("{}", self.timings);
        }
        Ok(())
    }

    fn print_counts(&self, skip: &Skip) {
        if self.counts.has_run() {
            println!("\n{}", self.counts);
            if !skip.list().is_empty() {
                println!("not run, because of --skip: the tests of {}", skip.list());
            }
        }
    }
}

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
    /// The documentation as a site, and its links.
    Site,
    /// Cargo command that builds the tests; its messages name the package of each test binary.
    Build(Vec<String>),
    /// Cargo command whose output is also read, to count the tests and for their durations.
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
    let build = arguments("test --workspace --all-features --no-run");
    let clippy = arguments("clippy --workspace --all-targets --all-features -- -D warnings");
    let doc = arguments("doc --no-deps --workspace --all-features");
    [
        ("fmt", Action::Cargo(arguments("fmt --all --check"))),
        ("check", Action::Check),
        ("deny", Action::Deny),
        ("clippy", Action::Cargo(clippy)),
        ("features", Action::Features),
        ("build", Action::Build(build)),
        ("test", Action::Tests(tests)),
        ("doc", Action::Cargo(doc)),
        ("site", Action::Site),
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
            Action::Site => site::build(root).map(|()| 0),
            Action::Features => {
                for args in feature_checks(root)? {
                    println!("cargo {}", args.join(" "));
                    let code = wait(&mut start(&mut cargo(root, &args))?)?;
                    if code != 0 {
                        return Ok(code);
                    }
                }
                Ok(0)
            }
            Action::Cargo(args) => wait(&mut start(&mut cargo(root, args))?),
            Action::Tests(args) => {
                let mut cargo = cargo(root, args);
                cargo.envs(variables.iter().map(|(name, value)| (name, value)));
                cargo.env("LEASEHOLD_TEST_NOT_APPLICABLE", &tests.not_applicable);
                if io::stderr().is_terminal() && std::env::var_os("CARGO_TERM_COLOR").is_none() {
                    cargo.env("CARGO_TERM_COLOR", "always");
                }
                run_tests(start(cargo.stdout(Stdio::piped()).stderr(Stdio::piped()))?, tests)
            }
            Action::Build(args) => {
                let mut cargo = cargo(root, args);
                cargo.args(["--message-format", "json-render-diagnostics"]);
                build_tests(start(cargo.stdout(Stdio::piped()))?, &mut tests.timings)
            }
        }
    }
}

fn build_tests(mut cargo: Child, timings: &mut Timings) -> Result<u8> {
    let output = cargo.stdout.take().expect("cargo was started with piped stdout");
    let mut executables = Executables::default();
    forward(BufReader::new(output), io::sink(), |line| executables.read(line))
        .context("cannot read the messages of cargo")?;
    timings.set_executables(executables);
    wait(&mut cargo)
}

fn run_tests(mut cargo: Child, tests: &mut Tests) -> Result<u8> {
    let output = cargo.stdout.take().expect("cargo was started with piped stdout");
    let messages = cargo.stderr.take().expect("cargo was started with piped stderr");
    let (sender, announced) = mpsc::channel();
    std::thread::spawn(move || {
        let send = |line: &str| sender.send(line.to_owned()).unwrap_or_default();
        forward(BufReader::new(messages), io::stderr(), send)
    });
    let started = Instant::now();
    let Tests { counts, timings, .. } = tests;
    let read = |line: &str| {
        counts.read(line);
        timings.read(line, started.elapsed());
    };
    forward(BufReader::new(output), io::stdout(), read).context("cannot forward the output of cargo test")?;
    let code = wait(&mut cargo)?;
    let until = Instant::now() + LAST_MESSAGES;
    while let Ok(line) = announced.recv_timeout(until.saturating_duration_since(Instant::now())) {
        timings.read_cargo(&line);
    }
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
            Action::Site => f.write_str("cargo xtask docs"),
            Action::Features => f.write_str("cargo check with each feature alone"),
            Action::Cargo(args) | Action::Build(args) | Action::Tests(args) => {
                write!(f, "cargo {}", args.join(" "))
            }
        }
    }
}

fn cargo(root: &Path, args: &[String]) -> Command {
    let mut cargo = crate::cargo::cargo(root, args);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    cargo.env("RUST_TEST_THREADS", test_threads().to_string());
    cargo
}

/// Returns the number of tests of a binary that run at once.
fn test_threads() -> usize {
    let given = std::env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    // Most tests wait for an engine or for a lease to expire.
    let default = || std::thread::available_parallelism().map_or(1, NonZero::get) * 3;
    given.filter(|threads| *threads > 0).unwrap_or_else(default)
}

/// Forwards output line by line, and passes each line on.
fn forward(mut from: impl BufRead, mut to: impl Write, mut on_line: impl FnMut(&str)) -> io::Result<()> {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        on_line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(())
}

/// Part of the output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    /// Registries that the package may be published to: `None` for all, empty for none.
    publish: Option<Vec<String>>,
    features: BTreeMap<String, Vec<String>>,
}

/// Returns the commands that check each feature of each published package alone, so that no feature needs
/// another one that it does not name.
fn feature_checks(root: &Path) -> Result<Vec<Vec<String>>> {
    let packages = metadata::<Metadata>(root, "--no-deps")?.packages;
    Ok(packages.iter().filter(|package| package.publish.is_none()).flat_map(checks_of).collect())
}

fn checks_of(package: &Package) -> Vec<Vec<String>> {
    let base = ["check", "--quiet", "--package", &package.name, "--no-default-features"].map(str::to_owned);
    // A feature that only names other features of the package adds no code of its own.
    let adds_code = |needs: &Vec<String>| !needs.iter().all(|need| package.features.contains_key(need));
    let features = package.features.iter().filter(|(_, needs)| needs.is_empty() || adds_code(needs));
    let alone = features.map(|(name, _)| [&base[..], &["--features".to_owned(), name.clone()]].concat());
    std::iter::once(base.to_vec()).chain(alone).collect()
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
        forward(&output[..], &mut shown, |line| counts.read(line)).unwrap();
        assert_eq!(shown, output);
        assert_eq!(counts.to_string(), "2 passed, 0 failed, 0 ignored, 0 filtered out");
    }

    #[test]
    fn the_steps_are_listed_with_their_durations_and_the_sum() {
        let [short, long] = [Duration::from_millis(1250), Duration::from_secs(754)];
        let table = step_table(&[("fmt", short, 0), ("features", long, 101)]);
        let expected = " seconds  step      result\n     1.2  fmt       ok\n   754.0  features  failed (exit code 101)\n   \
                        755.2  in all\n";
        assert_eq!(table, expected);
    }

    #[test]
    fn every_feature_is_checked_alone_and_no_feature_too() {
        let features =
            [("default", vec!["a"]), ("a", vec!["dep:x"]), ("b", vec![]), ("full", vec!["a", "b"])];
        let features = features
            .map(|(name, needs)| (name.to_owned(), needs.into_iter().map(str::to_owned).collect::<Vec<_>>()));
        let package = Package { name: "p".to_owned(), publish: None, features: features.into() };
        let lines: Vec<_> = checks_of(&package).iter().map(|args| args.join(" ")).collect();
        let base = "check --quiet --package p --no-default-features";
        assert_eq!(lines, [base.to_owned(), format!("{base} --features a"), format!("{base} --features b")]);
    }
}
