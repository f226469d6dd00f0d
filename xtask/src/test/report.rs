//! What the tests report: the numbers of all test binaries, from the output of the runner, and the cases
//! that did not apply, from the file that the tests write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Sum of all test binaries so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts {
    passed: u64,
    failed: u64,
    ignored: u64,
    filtered_out: u64,
}

impl TestCounts {
    /// Adds the numbers of a line if it is the summary of a test binary.
    pub(super) fn read(&mut self, line: &str) {
        let Some(summary) = line.strip_prefix("test result: ") else {
            return;
        };
        self.passed += number_before(summary, " passed");
        self.failed += number_before(summary, " failed");
        self.ignored += number_before(summary, " ignored");
        self.filtered_out += number_before(summary, " filtered out");
    }

    /// Whether any test ran at all.
    pub(super) fn has_run(&self) -> bool {
        self.passed + self.failed > 0
    }
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored, filtered_out } = self;
        write!(f, "{passed} passed, {failed} failed, {ignored} ignored, {filtered_out} filtered out")
    }
}

fn number_before(summary: &str, word: &str) -> u64 {
    let before = summary.split(';').find_map(|part| part.trim_end().strip_suffix(word));
    before.and_then(|text| text.rsplit(' ').next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Cases that did not run because an engine, or this machine, lacks a capability, by engine and capability.
/// The test harness counts them as passed.
#[derive(Debug, Default)]
pub(super) struct NotApplicable(BTreeMap<(String, String), BTreeSet<String>>);

impl NotApplicable {
    /// Reads lines of engine, case and missing capability, separated by tabs.
    pub(super) fn read(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            let mut fields = line.split('\t').map(str::to_owned);
            if let (Some(engine), Some(case), Some(missing)) = (fields.next(), fields.next(), fields.next()) {
                all.0.entry((engine, missing)).or_default().insert(case);
            }
        }
        all
    }
}

impl fmt::Display for NotApplicable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: usize = self.0.values().map(BTreeSet::len).sum();
        writeln!(f, "not applicable, although counted as passed: {count} cases")?;
        for ((engine, missing), cases) in &self.0 {
            writeln!(f, "{engine} has not {missing}:")?;
            for case in cases {
                writeln!(f, "    {case}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(lines: &[&str]) -> TestCounts {
        let mut counts = TestCounts::default();
        for line in lines {
            counts.read(line);
        }
        counts
    }

    #[test]
    fn summary_lines_are_added_up() {
        let sum = counts(&[
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s\n",
        ]);
        assert_eq!(sum.to_string(), "16 passed, 2 failed, 1 ignored, 7 filtered out");
    }

    #[test]
    fn other_lines_are_ignored() {
        let sum =
            counts(&["running 3 tests", "test model::tests::a_token_rises ... ok", "3 passed; 1 failed"]);
        assert_eq!(sum, TestCounts::default());
        assert!(!sum.has_run());
    }

    #[test]
    fn cases_are_listed_once_by_engine_and_missing_capability() {
        let text = "github\tb\ta queue\ngithub\ta\ta queue\ngithub\ta\ta queue\ndynamodb\tc\ttasks\n";
        let expected = "not applicable, although counted as passed: 3 cases\n\
                        dynamodb has not tasks:\n    c\n\
                        github has not a queue:\n    a\n    b\n";
        assert_eq!(NotApplicable::read(text).to_string(), expected);
    }
}
