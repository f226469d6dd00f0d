//! Human-readable durations such as `500ms 30s 10m 1h 2d`, also combined: `1h30m`.

use std::time::Duration;

use super::{ValidationError, ValueKind};

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parses `500ms`, `30s`, `1.5s`, `10m`, `1h30m`, `2d`. A bare `0` is a zero duration.
pub fn parse_duration(text: &str) -> Result<Duration, ValidationError> {
    let wrong = || {
        ValidationError::new(
            ValueKind::Duration,
            format!("'{text}' is not a duration; write 500ms, 30s, 10m, 1h or 2d"),
        )
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(ValidationError::new(
            ValueKind::Duration,
            format!("'{text}' is negative; a duration cannot be"),
        ));
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(wrong)?;
        rest = &rest[letters..];
        #[expect(clippy::cast_precision_loss, reason = "the units are small whole numbers")]
        let seconds = number * unit.1 as f64 / 1_000.0;
        let part = Duration::try_from_secs_f64(seconds).map_err(|_| {
            ValidationError::new(ValueKind::Duration, format!("'{text}' is too long a duration"))
        })?;
        total = total.checked_add(part).ok_or_else(wrong)?;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// Formats a duration in the syntax of [`parse_duration`], in its two largest units: `1h30m`,
/// `2m5s`, `1.5s`, `40ms`.
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    if millis < 10_000 && !millis.is_multiple_of(1_000) {
        return format!("{}.{}s", millis / 1_000, millis % 1_000 / 100);
    }
    let (two, _) = UNITS[1..].iter().rev().fold((Vec::new(), millis), |(mut parts, left), (name, size)| {
        let count = left / size;
        if parts.len() < 2 && (count > 0 || !parts.is_empty()) {
            parts.push(if count > 0 { format!("{count}{name}") } else { String::new() });
        }
        (parts, left % size)
    });
    two.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        let millis = |text| parse_duration(text).unwrap().as_millis();
        assert_eq!(millis("500ms"), 500);
        assert_eq!(millis("30s"), 30_000);
        assert_eq!(millis("1.5s"), 1_500);
        assert_eq!(millis("10m"), 600_000);
        assert_eq!(millis("1h30m"), 5_400_000);
        assert_eq!(millis("2d"), 172_800_000);
        assert_eq!(millis("0"), 0);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "5", "s", "5 s", "5x", "-5s", "1..5s", "99999999999999999999d", "5s junk", "nan", "1e3s"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_written_in_two_units() {
        let text = |millis| format_duration(Duration::from_millis(millis));
        assert_eq!(text(40), "40ms");
        assert_eq!(text(1_500), "1.5s");
        assert_eq!(text(30_000), "30s");
        assert_eq!(text(125_000), "2m5s");
        assert_eq!(text(5_400_000), "1h30m");
        assert_eq!(text(86_400_000 + 5_000), "1d");
        assert_eq!(text(2 * 86_400_000 + 7_200_000), "2d2h");
    }
}
