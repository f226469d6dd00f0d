//! How many tests passed and failed, summed over every test binary from the lines that the runner prints.

use std::fmt;

/// The sum so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    passed: u64,
    failed: u64,
}

impl Tally {
    /// Adds the line to the sum if it is the closing line of a test binary.
    pub(super) fn read(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        self.passed += number_before(counts, " passed");
        self.failed += number_before(counts, " failed");
    }

    /// Whether any test ran at all.
    pub(super) fn has_run(&self) -> bool {
        self.passed + self.failed > 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

fn number_before(counts: &str, word: &str) -> u64 {
    let before = counts.split(';').find_map(|part| part.trim_end().strip_suffix(word));
    before.and_then(|text| text.rsplit(' ').next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        for line in lines {
            tally.read(line);
        }
        tally
    }

    #[test]
    fn closing_lines_are_summed() {
        let sum = tally(&[
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s\n",
        ]);
        assert_eq!(sum.to_string(), "16 passed, 2 failed");
    }

    #[test]
    fn other_lines_count_for_nothing() {
        let sum =
            tally(&["running 3 tests", "test model::tests::a_token_rises ... ok", "3 passed; 1 failed"]);
        assert_eq!(sum, Tally::default());
        assert!(!sum.has_run());
    }
}
