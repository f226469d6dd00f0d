//! Seconds, times and ids as requests have them, checked once.

use std::time::Duration;

use leasehold::model::{RetryPolicy, TaskId, Timestamp, Ttl, ValidationError, WorkerId};
use serde::{Deserialize, Deserializer};

use crate::api::lease;
use crate::problem::{Answer, Problem};
use crate::server::App;

/// How long a lease lasts if nobody says.
const USUAL_TTL: Ttl = Ttl::from_secs(30);
/// So many tasks in one request.
pub(crate) const MOST: usize = 1000;

/// A field that makes no sense.
pub(super) fn wrong(field: &str, why: impl std::fmt::Display) -> Problem {
    Problem::invalid(format!("{field}: {why}"))
}

/// Seconds, also none.
pub(super) fn duration(field: &str, seconds: f64) -> Answer<Duration> {
    let most = Ttl::MAX.as_duration().as_secs_f64();
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds <= most => Ok(duration),
        _ => Err(wrong(field, format!("{seconds} is not a number of seconds from 0 to {most}"))),
    }
}

/// Seconds that something lasts.
pub(super) fn ttl(field: &str, seconds: f64) -> Answer<Ttl> {
    Ttl::new(duration(field, seconds)?).map_err(|invalid| wrong(field, invalid))
}

/// How long a lease lasts: what the request says, or else as the server is set up.
pub(super) fn lease_ttl(app: &App, seconds: Option<f64>) -> Answer<Ttl> {
    let usual = || Ok(app.default_ttl().unwrap_or(USUAL_TTL));
    seconds.map_or_else(usual, |seconds| lease::lease_ttl(app, seconds))
}

/// Seconds until something, which may be none at all.
pub(super) fn pause(field: &str, seconds: f64) -> Answer<Ttl> {
    let pause = duration(field, seconds)?.max(Ttl::MIN.as_duration());
    Ttl::new(pause).map_err(|invalid| wrong(field, invalid))
}

/// A time.
pub(super) fn time(field: &str, text: &str) -> Answer<Timestamp> {
    text.parse().map_err(|invalid: ValidationError| wrong(field, invalid))
}

/// The id of a task.
pub(super) fn task_id(text: &str) -> Answer<TaskId> {
    Ok(text.parse()?)
}

/// The id of a worker.
pub(super) fn worker_id(text: &str) -> Answer<WorkerId> {
    Ok(text.parse()?)
}

/// How often something is tried: what was said, and for the rest what holds already.
pub(super) fn retries(
    attempts: Option<u32>,
    backoff: Option<f64>,
    before: RetryPolicy,
) -> Answer<RetryPolicy> {
    let first = backoff.map(|seconds| ttl("backoffSeconds", seconds)).transpose()?.unwrap_or(before.first);
    let longest = before.longest.max(first);
    Ok(RetryPolicy { attempts: attempts.unwrap_or(before.attempts), first, longest }.check()?)
}

/// Not more than fit in one request.
pub(super) fn bounded<T>(field: &str, items: &[T]) -> Answer<()> {
    if items.len() > MOST {
        return Err(wrong(
            field,
            format!("{} are too many; {MOST} are the most in one request", items.len()),
        ));
    }
    Ok(())
}

/// A field that may be left out, and where `null` is a value and not an absence.
pub(super) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_a_number_that_can_be() {
        assert_eq!(duration("x", 0.0).unwrap(), Duration::ZERO);
        assert_eq!(ttl("x", 1.5).unwrap(), Ttl::from_millis(1500));
        assert_eq!(pause("x", 0.0).unwrap(), Ttl::MIN);
        for nonsense in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(duration("x", nonsense).is_err() && pause("x", nonsense).is_err(), "{nonsense}");
        }
        assert!(ttl("x", 0.0).is_err() && ttl("x", 1e12).is_err());
    }
}
