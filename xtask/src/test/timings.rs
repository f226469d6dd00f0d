//! What took the time: the slowest test binaries and the slowest tests, from the output of cargo and of
//! the test harness.
//!
//! The harness of stable Rust prints no duration of a test, only the end of each, in the order of the ends.
//! It starts the tests of a binary in the order of their names, as many at once as it has threads, and
//! the next one whenever a test ends. So with `n` threads the test at position `i` of the sorted names
//! starts with the binary if `i < n`, else with the end of the test that was the `i - n + 1`st to end.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

/// Number of binaries and of tests that are listed.
const BINARIES: usize = 10;
const TESTS: usize = 15;

/// Start of the line with which cargo announces a binary, and of the one for the documentation of a package.
const RUNNING: &str = "Running ";
const DOC_TESTS: &str = "Doc-tests ";
/// Suffixes that the harness appends to the name of a test.
const SUFFIXES: [&str; 3] = [" - should panic", " - compile fail", " - compile"];

/// Package and target of each test binary, by the name of its file.
#[derive(Debug, Default)]
pub(super) struct Executables(HashMap<String, String>);

/// Part of a message that cargo prints for each artifact.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<String>,
    target: Target,
    manifest_path: String,
    profile: Profile,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Executables {
    /// Reads a line of `cargo test --no-run --message-format json-render-diagnostics`.
    pub(super) fn read(&mut self, line: &str) {
        let Ok(artifact) = serde_json::from_str::<Artifact>(line) else { return };
        let Artifact { executable: Some(executable), target, manifest_path, profile: Profile { test: true } } =
            artifact
        else {
            return;
        };
        let package = Path::new(&manifest_path).parent().and_then(Path::file_name).unwrap_or_default();
        let package = package.to_string_lossy();
        let name = match target.kind.first().map(String::as_str) {
            Some("test") => format!("{package}, tests {}", target.name),
            Some("bin" | "example") => format!("{package}, unit tests of {}", target.name),
            _ => format!("{package}, unit tests"),
        };
        self.0.insert(file_name(&executable).to_owned(), name);
    }
}

/// Test binaries in the order in which they ran.
#[derive(Debug)]
pub(super) struct Timings {
    threads: usize,
    executables: Executables,
    /// Lines of cargo that announce a binary.
    announced: Vec<String>,
    binaries: Vec<Binary>,
}

#[derive(Debug)]
struct Binary {
    started: Duration,
    /// Duration, as the harness reports it.
    took: Option<Duration>,
    /// Name and time of the end of each test, in the order of the ends.
    ends: Vec<(String, Duration)>,
}

impl Timings {
    /// Timings of binaries that run this many tests at once.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            threads: threads.max(1),
            executables: Executables::default(),
            announced: Vec::new(),
            binaries: Vec::new(),
        }
    }

    pub(super) fn set_executables(&mut self, executables: Executables) {
        self.executables = executables;
    }

    /// Reads a line that cargo wrote to standard error.
    pub(super) fn read_cargo(&mut self, line: &str) {
        let line = without_colours(line);
        let line = line.trim();
        if line.starts_with(RUNNING) && line.ends_with(')') || line.starts_with(DOC_TESTS) {
            self.announced.push(line.to_owned());
        }
    }

    /// Reads a line that a test binary wrote to standard output `now` after the start of the run.
    pub(super) fn read(&mut self, line: &str, now: Duration) {
        let line = line.trim_end();
        if is_start(line) {
            self.binaries.push(Binary { started: now, took: None, ends: Vec::new() });
            return;
        }
        let Some(binary) = self.binaries.last_mut() else { return };
        if let Some(summary) = line.strip_prefix("test result: ") {
            let seconds = summary.rsplit_once("finished in ").and_then(|(_, took)| took.strip_suffix('s'));
            let seconds = seconds.and_then(|seconds| seconds.parse().ok());
            binary.took = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        } else if let Some((name, _)) = line.strip_prefix("test ").and_then(|test| test.rsplit_once(" ... "))
        {
            let name = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            binary.ends.push((name.to_owned(), now));
        }
    }

    /// Returns the name of the binary at this position. Cargo announces each binary once, in order.
    fn name(&self, at: usize) -> String {
        let line = self.announced.get(at).filter(|_| self.announced.len() == self.binaries.len());
        let Some(line) = line else { return format!("binary {}", at + 1) };
        if let Some(package) = line.strip_prefix(DOC_TESTS) {
            return format!("{package}, examples of the documentation");
        }
        let path = line.trim_end_matches(')').rsplit('(').next().unwrap_or(line);
        self.executables.0.get(file_name(path)).cloned().unwrap_or_else(|| path.to_owned())
    }
}

impl Binary {
    fn took(&self) -> Duration {
        let last = self.ends.last().map_or(self.started, |(_, end)| *end);
        self.took.unwrap_or_else(|| last.saturating_sub(self.started))
    }

    /// Returns each test with its duration.
    fn tests(&self, threads: usize) -> impl Iterator<Item = (&str, Duration)> {
        let mut sorted: Vec<_> = self.ends.iter().collect();
        sorted.sort_by(|one, other| one.0.cmp(&other.0));
        sorted.into_iter().enumerate().map(move |(at, (name, end))| {
            let start = at.checked_sub(threads).map_or(self.started, |before| self.ends[before].1);
            (name.as_str(), end.saturating_sub(start))
        })
    }
}

impl fmt::Display for Timings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut binaries: Vec<_> = self.binaries.iter().enumerate().collect();
        binaries.sort_by_key(|(_, binary)| std::cmp::Reverse(binary.took()));
        writeln!(f, "{:>8}  {:>5}  slowest test binaries", "seconds", "tests")?;
        for (at, binary) in binaries.iter().take(BINARIES) {
            let (took, count) = (binary.took().as_secs_f64(), binary.ends.len());
            writeln!(f, "{took:>8.1}  {count:>5}  {}", self.name(*at))?;
        }
        let tests = |(at, binary): (usize, &Binary)| {
            let tests =
                binary.tests(self.threads).map(|(name, took)| (took, format!("{name} ({})", self.name(at))));
            tests.collect::<Vec<_>>()
        };
        let mut tests: Vec<_> = self.binaries.iter().enumerate().flat_map(tests).collect();
        tests.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
        writeln!(f, "\n{:>8}  slowest tests, {} at once", "seconds", self.threads)?;
        for (took, name) in tests.iter().take(TESTS) {
            writeln!(f, "{:>8.1}  {name}", took.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Whether this is the first line of a test binary, such as `running 12 tests`.
fn is_start(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|line| line.split_once(" test"));
    count.is_some_and(|(count, rest)| count.parse::<u64>().is_ok() && ["", "s"].contains(&rest))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the line without the escape sequences that set colours.
fn without_colours(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Two threads: `a` runs from 10 to 16, `b` from 10 to 12, `c` from 12 to 13, `d` from 13 to 20.
    fn example() -> Timings {
        let mut timings = Timings::new(2);
        let mut executables = Executables::default();
        executables.read(
            r#"{"reason":"compiler-artifact","manifest_path":"/x/crates/leasehold-server/Cargo.toml","target":{"name":"it","kind":["test"]},
                "profile":{"test":true},"executable":"/x/target/debug/deps/it-0a1b"}"#,
        );
        executables.read(r#"{"reason":"build-finished","success":true}"#);
        timings.set_executables(executables);
        timings.read_cargo("   Compiling leasehold v0.1.0 (/x/crates/leasehold)\n");
        timings.read_cargo(
            "\u{1b}[1m\u{1b}[92m     Running\u{1b}[0m tests/it/main.rs (target/debug/deps/it-0a1b)\n",
        );
        for (line, at) in [
            ("running 4 tests", 10),
            ("test b ... ok", 12),
            ("test c - should panic ... ok", 13),
            ("test d has been running for over 60 seconds", 14),
            ("test a ... FAILED", 16),
            ("text of a test ... ok", 17),
            ("test d ... ok", 20),
            (
                "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 10.02s",
                21,
            ),
        ] {
            timings.read(&format!("{line}\n"), seconds(at));
        }
        timings.read_cargo("   Doc-tests leasehold\n");
        timings.read("running 0 tests\n", seconds(30));
        timings.read(
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s\n",
            seconds(30),
        );
        timings
    }

    #[test]
    fn the_start_of_a_test_is_the_end_of_the_one_that_left_it_a_thread() {
        let timings = example();
        let tests: Vec<_> = timings.binaries[0].tests(2).collect();
        assert_eq!(tests, [("a", seconds(6)), ("b", seconds(2)), ("c", seconds(1)), ("d", seconds(7))]);
        let alone: Vec<_> = timings.binaries[0].tests(9).map(|(_, took)| took).collect();
        assert_eq!(alone, [6, 2, 3, 10].map(seconds));
    }

    #[test]
    fn the_slowest_binaries_and_tests_come_first_with_their_package() {
        let expected = "
 seconds  tests  slowest test binaries
    10.0      4  leasehold-server, tests it
     0.0      0  leasehold, examples of the documentation

 seconds  slowest tests, 2 at once
     7.0  d (leasehold-server, tests it)
     6.0  a (leasehold-server, tests it)
     2.0  b (leasehold-server, tests it)
     1.0  c (leasehold-server, tests it)
";
        assert_eq!(format!("\n{}", example()), expected);
    }

    #[test]
    fn a_binary_that_cargo_has_not_announced_has_a_number() {
        let mut timings = example();
        timings.read("running 1 test\n", seconds(40));
        timings.read("test e ... ok\n", seconds(52));
        assert!(timings.to_string().contains("    12.0      1  binary 3\n"), "{timings}");
    }

    #[test]
    fn at_most_fifteen_tests_are_listed() {
        let mut timings = Timings::new(1);
        timings.read("running 40 tests\n", seconds(0));
        for at in 0..40 {
            timings.read(&format!("test t{at:02} ... ok\n"), seconds(at * 2));
        }
        let listed = timings.to_string().lines().filter(|line| line.ends_with(" (binary 1)")).count();
        assert_eq!(listed, 15, "{timings}");
    }
}
