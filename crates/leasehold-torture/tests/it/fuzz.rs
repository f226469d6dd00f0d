//! Fuzz target of recorded histories.

use leasehold::fuzz_corpus;
use leasehold::testing::fuzz::{Shape, fuzz};
use leasehold_torture::{History, Report, check};

#[test]
fn histories_are_read_as_they_were_written_and_checked() {
    fuzz(fuzz_corpus!("histories"), 2_000, |input| match History::read(input) {
        Ok(history) => {
            let mut written = Vec::new();
            history.write(&mut written).unwrap();
            assert_eq!(History::read(written.as_slice()).unwrap(), history);
            let (checked, report) = (check(&history), Report::of(&history));
            assert!(!report.fit || report.violations == 0, "a store with violations is not fit");
            Shape::of(&(checked, report.violations.min(3)))
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("line ") || text.contains("format ") || text.contains("UTF-8"), "{text}");
            Shape::of_text(&error)
        }
    });
}
