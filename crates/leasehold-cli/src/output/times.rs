//! Times for people and for programs: local time on a terminal, RFC 3339 in UTC elsewhere and with `--utc`.

use std::sync::OnceLock;
use std::time::Duration;

use jiff::tz::TimeZone;
use leasehold::model::{Timestamp, format_duration};

/// Time zone of times on a terminal; not set if times are written for programs, in UTC.
static LOCAL: OnceLock<TimeZone> = OnceLock::new();
/// Whether ages are written for people, without fractions of a second.
static COARSE: OnceLock<()> = OnceLock::new();

/// Writes times for a person from now on: ages to the second, and unless `utc`, times in local time.
pub(crate) fn write_for_people(utc: bool) {
    let _ = COARSE.set(());
    if !utc {
        let _ = LOCAL.set(local_zone().unwrap_or(TimeZone::UTC));
    }
}

/// Returns the time zone of this process: `TZ`, or that of the system.
fn local_zone() -> Option<TimeZone> {
    match std::env::var("TZ") {
        Ok(name) if !name.is_empty() => {
            let name = name.trim_start_matches(':');
            TimeZone::get(name).or_else(|_| TimeZone::posix(name)).ok()
        }
        _ => TimeZone::tzif("local", &std::fs::read("/etc/localtime").ok()?).ok(),
    }
}

/// Returns a time with its zone: `2024-11-05 15:31:45 CET`, or in UTC `2024-11-05T14:31:45Z`.
pub(crate) fn time(at: Timestamp) -> String {
    formatted(at, "%Y-%m-%d %H:%M:%S %Z")
}

/// Returns a time for a column: as [`time`], without the name of the local zone.
pub(super) fn time_cell(at: Timestamp) -> String {
    formatted(at, "%Y-%m-%d %H:%M:%S")
}

fn formatted(at: Timestamp, format: &str) -> String {
    match LOCAL.get() {
        Some(zone) => in_zone(at, zone, format).unwrap_or_else(|| at.to_string()),
        None => at.to_string(),
    }
}

fn in_zone(at: Timestamp, zone: &TimeZone, format: &str) -> Option<String> {
    let instant: jiff::Timestamp = at.to_string().parse().ok()?;
    Some(instant.to_zoned(zone.clone()).strftime(format).to_string())
}

/// Returns the elapsed time: `3s ago`.
pub(crate) fn ago(now: Timestamp, then: Timestamp) -> String {
    let elapsed = now.since(then);
    if is_now(elapsed) { "just now".to_owned() } else { format!("{} ago", short(elapsed)) }
}

/// Returns the distance from now: `in 25s`, or `3s ago` if that time has passed.
pub(crate) fn shortly(now: Timestamp, then: Timestamp) -> String {
    match then.since(now) {
        left if now < then && is_now(left) => "now".to_owned(),
        left if now < then => format!("in {}", short(left)),
        _ => ago(now, then),
    }
}

/// Returns a time and its distance from now.
pub(crate) fn when(now: Timestamp, then: Timestamp) -> String {
    format!("{} ({})", time(then), shortly(now, then))
}

/// Formats a duration to the second, unless it is shorter than that.
pub(crate) fn short(duration: Duration) -> String {
    match duration.as_secs() {
        0 if is_now(duration) => "0s".to_owned(),
        0 => format_duration(duration),
        seconds => format_duration(Duration::from_secs(seconds)),
    }
}

/// Whether the duration is too short to matter to a person.
fn is_now(duration: Duration) -> bool {
    COARSE.get().is_some() && duration < Duration::from_secs(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_to_now() {
        let at = Timestamp::from_micros;
        assert_eq!(ago(at(65_700_000), at(0)), "1m5s ago");
        assert_eq!(shortly(at(0), at(900_000)), "in 900ms");
        assert_eq!(shortly(at(2_500_000), at(1_000_000)), "1s ago");
    }

    #[test]
    fn a_time_is_written_in_a_zone_with_its_name() {
        let (at, zone) =
            (Timestamp::from_micros(1_730_817_105_400_000), TimeZone::get("Europe/Berlin").unwrap());
        assert_eq!(in_zone(at, &zone, "%Y-%m-%d %H:%M:%S %Z").unwrap(), "2024-11-05 15:31:45 CET");
        assert_eq!(time(at), "2024-11-05T14:31:45Z", "the tests write for programs");
    }
}
