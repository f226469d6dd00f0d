//! `cargo xtask test`: all checks of a change in a fixed order, up to the first failure.

mod report;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;
use std::{fmt, fs};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cargo::{metadata, start, wait};
use crate::engines::{ScopedEngines, Skip, target};
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
        results.push((step.name, start.elapsed(), code));
        if code != 0 {
            break;
        }
    }
    println!("\n{:<8} {:>8}  result", "step", "seconds");
    for (name, took, code) in results {
        let result = if code == 0 { "ok".into() } else { format!("failed (exit code {code})") };
        println!("{name:<8} {:>8.1}  {result}", took.as_secs_f64());
    }
    println!();
    tests.print(skip)?;
    Ok(ExitCode::from(code))
}

/// What the tests of a run report.
struct Tests {
    counts: TestCounts,
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
                run_tests(start(cargo.stdout(Stdio::piped()))?, &mut tests.counts)
            }
        }
    }
}

fn run_tests(mut cargo: Child, counts: &mut TestCounts) -> Result<u8> {
    let output = cargo.stdout.take().expect("cargo was started with piped stdout");
    forward(BufReader::new(output), io::stdout(), counts)
        .context("cannot forward the output of cargo test")?;
    let code = wait(&mut cargo)?;
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
    let mut cargo = crate::cargo::cargo(root, args);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // Most tests wait for an engine or for a lease to expire.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        cargo.env("RUST_TEST_THREADS", (cores * 2).to_string());
    }
    cargo
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
        forward(&output[..], &mut shown, &mut counts).unwrap();
        assert_eq!(shown, output);
        assert_eq!(counts.to_string(), "2 passed, 0 failed, 0 ignored, 0 filtered out");
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
