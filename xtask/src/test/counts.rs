//! Numbers of passed and failed tests, summed over all test binaries from the output of the runner.

use std::fmt;

/// Sum of all test binaries so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts {
    passed: u64,
    failed: u64,
}

impl TestCounts {
    /// Adds the numbers of a line if it is the summary of a test binary.
    pub(super) fn read(&mut self, line: &str) {
        let Some(summary) = line.strip_prefix("test result: ") else {
            return;
        };
        self.passed += number_before(summary, " passed");
        self.failed += number_before(summary, " failed");
    }

    /// Whether any test ran at all.
    pub(super) fn has_run(&self) -> bool {
        self.passed + self.failed > 0
    }
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

fn number_before(summary: &str, word: &str) -> u64 {
    let before = summary.split(';').find_map(|part| part.trim_end().strip_suffix(word));
    before.and_then(|text| text.rsplit(' ').next()).and_then(|number| number.parse().ok()).unwrap_or(0)
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
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s\n",
        ]);
        assert_eq!(sum.to_string(), "16 passed, 2 failed");
    }

    #[test]
    fn other_lines_are_ignored() {
        let sum =
            counts(&["running 3 tests", "test model::tests::a_token_rises ... ok", "3 passed; 1 failed"]);
        assert_eq!(sum, TestCounts::default());
        assert!(!sum.has_run());
    }
}
