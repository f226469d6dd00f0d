//! Values as people write them: parsed once, here, into types that cannot be wrong.

use std::str::FromStr;
use std::time::Duration;

use leasehold::model::{
    Priority, Retention, RetryPolicy, Schedule, Slots, Status, TaskState, Timestamp, Ttl, ValidationError,
    parse_duration,
};
use leasehold::store::LockState;

use crate::run::Patience;

/// Which locks to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// By the state of the lock.
    State(LockState),
    /// By the status of a live lease.
    Lease(Status),
}

/// What `locks wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Target {
    /// Nobody holds it
    Free,
    /// Somebody holds it
    Held,
}

const FILTERS: [(&str, Filter); 7] = [
    ("active", Filter::Lease(Status::Active)),
    ("releasing", Filter::Lease(Status::Releasing)),
    ("released", Filter::Lease(Status::Released)),
    ("held", Filter::State(LockState::Held)),
    ("free", Filter::State(LockState::Free)),
    ("waited", Filter::State(LockState::Waited)),
    ("stale", Filter::State(LockState::Stale)),
];

impl FromStr for Filter {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let status = text.strip_prefix("status=").unwrap_or_default();
        let found = FILTERS.iter().find(|(name, _)| *name == status);
        found.map(|(_, filter)| *filter).ok_or_else(|| {
            let names = FILTERS.map(|(name, _)| name).join(", ");
            ValidationError(format!("'{text}' is not a filter; write status= and one of {names}"))
        })
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, ValidationError> {
    parse_duration(text)
}

/// How long something is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep(pub(crate) Option<Ttl>);

pub(super) fn keep(text: &str) -> Result<Keep, ValidationError> {
    Retention::parse_keep(text).map(Keep)
}

pub(super) fn ttl(text: &str) -> Result<Ttl, ValidationError> {
    Ttl::new(parse_duration(text)?)
}

pub(super) fn jitter(text: &str) -> Result<Ttl, ValidationError> {
    ttl(text).and_then(Schedule::check_jitter)
}

pub(super) fn patience(text: &str) -> Result<Patience, ValidationError> {
    if text == "forever" {
        return Ok(Patience::Forever);
    }
    match parse_duration(text) {
        Ok(Duration::ZERO) => Ok(Patience::FailFast),
        Ok(duration) => Ok(Patience::For(duration)),
        Err(ValidationError(wrong)) => {
            Err(ValidationError(format!("{wrong} (0 is not at all; forever is possible too)")))
        }
    }
}

pub(super) fn slots(text: &str) -> Result<Slots, ValidationError> {
    Slots::new(number(text)?)
}

pub(super) fn priority(text: &str) -> Result<Priority, ValidationError> {
    Priority::new(number(text)?)
}

fn number<T: FromStr>(text: &str) -> Result<T, ValidationError> {
    text.parse().map_err(|_| ValidationError(format!("'{text}' is not a whole number that fits")))
}

pub(super) fn limit(text: &str) -> Result<u32, ValidationError> {
    match text.parse() {
        Ok(0) | Err(_) => {
            Err(ValidationError(format!("'{text}' is not a limit; write a whole number of 1 or more")))
        }
        Ok(limit) => Ok(limit),
    }
}

pub(super) fn attempts(text: &str) -> Result<u32, ValidationError> {
    RetryPolicy { attempts: number(text)?, ..RetryPolicy::default() }.check().map(|retries| retries.attempts)
}

pub(super) fn work_slots(text: &str) -> Result<u32, ValidationError> {
    match text.parse() {
        Ok(slots @ 1..=1000) => Ok(slots),
        _ => Err(ValidationError(format!("'{text}' is not a number of slots; write 1 to 1000"))),
    }
}

pub(super) fn time(text: &str) -> Result<Timestamp, ValidationError> {
    text.parse()
}

pub(super) fn end_state(text: &str) -> Result<TaskState, ValidationError> {
    let state: TaskState = text.parse()?;
    if state.is_terminal() {
        Ok(state)
    } else {
        Err(ValidationError(format!(
            "tasks that are {state} have not ended; write succeeded, failed or aborted"
        )))
    }
}

/// The state of an execution; one that waits for its turn is blocked, and is also called queued.
pub(super) fn execution_state(text: &str) -> Result<TaskState, ValidationError> {
    if text == "queued" { Ok(TaskState::Blocked) } else { text.parse() }
}

pub(super) fn exit_code(text: &str) -> Result<i32, ValidationError> {
    let code: Result<u8, _> = text.parse();
    code.map(i32::from).map_err(|_| ValidationError(format!("'{text}' is not an exit code; write 0 to 255")))
}

pub(super) fn part(text: &str) -> Result<f64, ValidationError> {
    match text.parse() {
        Ok(part) if (0.05..=0.9).contains(&part) => Ok(part),
        _ => Err(ValidationError(format!("'{text}' is not a part of the ttl; write 0.05 to 0.9"))),
    }
}

pub(super) fn fact(text: &str) -> Result<(String, String), ValidationError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ValidationError(format!("'{text}' is not a fact; write KEY=VALUE"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_none_some_or_endless() {
        assert_eq!(patience("0").unwrap(), Patience::FailFast);
        assert_eq!(patience("0s").unwrap(), Patience::FailFast);
        assert_eq!(patience("10m").unwrap(), Patience::For(Duration::from_mins(10)));
        assert_eq!(patience("forever").unwrap(), Patience::Forever);
        for nonsense in ["", "soon", "-1s", "5", "Forever", "99999999999999999999d"] {
            assert!(patience(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_ttl_is_more_than_nothing_and_less_than_for_ever() {
        assert!(ttl("30s").is_ok());
        for nonsense in ["0", "0s", "-5s", "5", "", "4000d", "99999999999999999999d", "inf"] {
            assert!(ttl(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_filter_is_named_in_full() {
        assert_eq!("status=stale".parse(), Ok(Filter::State(LockState::Stale)));
        assert_eq!("status=active".parse(), Ok(Filter::Lease(Status::Active)));
        for nonsense in ["", "stale", "status=", "status=dead", "state=free"] {
            assert!(nonsense.parse::<Filter>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_fact_is_a_key_and_a_value() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(fact("a=b=c").unwrap(), pair("a", "b=c"));
        assert_eq!(fact("a=").unwrap(), pair("a", ""));
        assert!(fact("=b").is_err() && fact("b").is_err());
    }

    #[test]
    fn a_part_is_a_number_within_bounds() {
        assert!(part("0.33").is_ok() && part("0.9").is_ok());
        for nonsense in ["0", "1", "nan", "inf", "-0.3", "", "1/3"] {
            assert!(part(nonsense).is_err(), "{nonsense}");
        }
    }
}
