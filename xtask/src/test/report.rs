//! What the tests report: the numbers of all test binaries, from the output of the runner, and the cases
//! that did not apply, from the file that the tests write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Results that a test binary counts.
const RESULTS: [&str; 4] = ["passed", "failed", "ignored", "filtered out"];

/// Sum of each result over all test binaries so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts([u64; RESULTS.len()]);

impl TestCounts {
    /// Adds the numbers of a line if it is the summary of a test binary.
    pub(super) fn read(&mut self, line: &str) {
        let Some(summary) = line.strip_prefix("test result: ") else { return };
        for (count, result) in self.0.iter_mut().zip(RESULTS) {
            *count += number_before(summary, result);
        }
    }

    /// Whether any test ran at all.
    pub(super) fn has_run(&self) -> bool {
        self.0[0] + self.0[1] > 0
    }
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.iter().zip(RESULTS).map(|(count, result)| format!("{count} {result}"));
        f.write_str(&counts.collect::<Vec<_>>().join(", "))
    }
}

fn number_before(summary: &str, words: &str) -> u64 {
    let before = summary.split(';').find_map(|part| part.trim_end().strip_suffix(words));
    before
        .and_then(|text| text.trim_end().rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
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
