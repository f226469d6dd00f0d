//! Points in time of the engine's clock, lifetimes of leases, and durations as text. This module does
//! not read a clock.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ValidationError, ValueKind};

/// Point in the engine's time: microseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates a timestamp from microseconds since 1970.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since 1970.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns this time plus `ttl`, saturating at the maximum timestamp.
    #[must_use]
    pub const fn plus(self, ttl: Ttl) -> Self {
        Self(self.0.saturating_add(ttl.0))
    }

    /// Returns this time plus `micros` microseconds, saturating at the maximum timestamp.
    #[must_use]
    pub const fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// Returns this time minus `duration`, saturating at zero.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from `earlier` to this time; zero if this time is not after `earlier`.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Whether this time never comes: the end of a lease that does not expire.
    pub const fn is_endless(self) -> bool {
        self.0 == u64::MAX
    }
}

/// Formats as RFC 3339 in UTC: whole seconds, or microseconds with `{:#}`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = i64::try_from(self.0).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_microsecond(micros) {
            Ok(time) if f.alternate() => write!(f, "{time:.6}"),
            Ok(time) => write!(f, "{time:.0}"),
            Err(_) => write!(f, "the end of time"),
        }
    }
}

/// Parses RFC 3339 with an offset: `2030-01-01T06:00:00Z`.
impl std::str::FromStr for Timestamp {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let message = || format!("'{text}' is not a time; write one such as 2030-01-01T06:00:00Z");
        let wrong = || ValidationError::new(ValueKind::Time, message());
        let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
        u64::try_from(time.as_microsecond()).map(Self).map_err(|_| wrong())
    }
}

/// Lifetime of a lease or a ticket: at least one millisecond, at most ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Ttl(u64);

impl Ttl {
    /// Minimum lifetime: one millisecond.
    pub const MIN: Self = Self(1_000);
    /// Maximum lifetime: ten years.
    pub const MAX: Self = Self(10 * 365 * 24 * 3600 * 1_000_000);

    /// Creates a lifetime; fails unless it is within [`MIN`](Self::MIN) and [`MAX`](Self::MAX).
    pub fn new(duration: Duration) -> Result<Self, ValidationError> {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let message = if micros < Self::MIN.0 {
            let given = if duration.is_zero() { "0".to_owned() } else { format!("{duration:?}") };
            format!("a duration of {given} is too short; 1ms is the least")
        } else if micros > Self::MAX.0 {
            "the duration is too long; 3650d is the most".to_owned()
        } else {
            return Ok(Self(micros));
        };
        Err(ValidationError::new(ValueKind::Duration, message))
    }

    /// Creates a lifetime from a fixed number of seconds, for constants.
    ///
    /// # Panics
    /// At compile time, or at run time outside of a constant, if the value is out of bounds.
    pub const fn from_secs(secs: u64) -> Self {
        let micros = secs * 1_000_000;
        assert!(micros >= Self::MIN.0 && micros <= Self::MAX.0, "out of bounds");
        Self(micros)
    }

    /// Creates a lifetime from a fixed number of milliseconds, for constants.
    ///
    /// # Panics
    /// At compile time, or at run time outside of a constant, if the value is out of bounds.
    pub const fn from_millis(millis: u64) -> Self {
        let micros = millis * 1_000;
        assert!(micros >= Self::MIN.0 && micros <= Self::MAX.0, "out of bounds");
        Self(micros)
    }

    /// Returns the lifetime as a standard duration.
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// Returns the lifetime in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_duration(self.as_duration()))
    }
}

impl TryFrom<u64> for Ttl {
    type Error = ValidationError;
    fn try_from(micros: u64) -> Result<Self, ValidationError> {
        Self::new(Duration::from_micros(micros))
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = ValidationError;
    fn try_from(duration: Duration) -> Result<Self, ValidationError> {
        Self::new(duration)
    }
}

impl From<Ttl> for u64 {
    fn from(ttl: Ttl) -> u64 {
        ttl.0
    }
}

/// Units of human-readable durations such as `500ms 30s 10m 1h 2d`, also combined: `1h30m`.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parses `500ms`, `30s`, `1.5s`, `10m`, `1h30m`, `2d`. A bare `0` is a zero duration.
pub fn parse_duration(text: &str) -> Result<Duration, ValidationError> {
    let refused = |why: &str| ValidationError::new(ValueKind::Duration, format!("'{text}' is {why}"));
    let wrong = || refused("not a duration; write 500ms, 30s, 10m, 1h or 2d");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(refused("negative; a duration cannot be"));
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
        let part = Duration::try_from_secs_f64(seconds).map_err(|_| refused("too long a duration"))?;
        total = total.checked_add(part).ok_or_else(wrong)?;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// Formats a duration in the syntax of [`parse_duration`], in its two largest units: `1h30m`,
/// `2m5s`, `1.5s`, `40ms`.
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    if millis < 10_000 && millis % 1_000 >= 100 {
        return format!("{}.{}s", millis / 1_000, millis % 1_000 / 100);
    }
    let (two, _) = UNITS[1..].iter().rev().fold((Vec::new(), millis), |(mut parts, left), (name, size)| {
        let size = u128::from(*size);
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
    fn a_ttl_has_bounds() {
        assert!(Ttl::new(Duration::ZERO).is_err());
        assert!(Ttl::new(Duration::from_micros(999)).is_err());
        assert_eq!(Ttl::new(Duration::from_millis(1)).unwrap(), Ttl::MIN);
        assert_eq!(Ttl::new(Ttl::MAX.as_duration()).unwrap(), Ttl::MAX);
        assert!(Ttl::new(Duration::MAX).is_err());
        assert!(serde_json::from_str::<Ttl>("0").is_err());
    }

    #[test]
    fn times_are_written_as_rfc_3339() {
        let time = Timestamp::from_micros(1_730_817_135_123_456);
        assert_eq!(time.to_string(), "2024-11-05T14:32:15Z");
        assert_eq!(format!("{time:#}"), "2024-11-05T14:32:15.123456Z");
        assert_eq!(Timestamp::from_micros(u64::MAX).to_string(), "the end of time");
    }

    #[test]
    fn time_never_wraps() {
        let end = Timestamp::from_micros(u64::MAX);
        assert_eq!(end.plus(Ttl::MAX), end);
        assert_eq!(Timestamp::default().since(end), Duration::ZERO);
    }

    #[test]
    fn a_time_is_written_in_full() {
        let time = |text: &str| text.parse::<Timestamp>();
        assert_eq!(time("1970-01-01T00:00:01.5Z").unwrap(), Timestamp::from_micros(1_500_000));
        assert_eq!(time("1970-01-01T01:00:00+01:00").unwrap(), Timestamp::from_micros(0));
        for nonsense in
            ["", "tomorrow", "06:00", "2030-01-01", "1969-12-31T23:59:59Z", "2030-13-01T00:00:00Z"]
        {
            assert!(time(nonsense).is_err(), "{nonsense}");
        }
    }

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
