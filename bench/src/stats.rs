//! Medians, and formatting of numbers.

/// Returns the median; of an even number of values, the mean of the middle two.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Converts a count or a time.
#[expect(clippy::cast_precision_loss, reason = "all values are far below 2^53")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

/// Formats a number with thousands separators: `1,234,567`.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 && digit.is_ascii_digit() {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats nanoseconds with a unit and three digits.
pub(crate) fn duration(nanos: f64) -> String {
    let (number, unit) = match nanos {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([1.0, 999.4, 1234.0, 1_234_567.0].map(grouped), ["1", "999", "1,234", "1,234,567"]);
        assert_eq!(
            [512.0, 1_234.0, 99_960_000.0, 2e9].map(duration),
            ["512 ns", "1.23 µs", "100.0 ms", "2.00 s"]
        );
    }
}
