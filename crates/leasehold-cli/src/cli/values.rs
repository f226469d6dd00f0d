//! Values of the command line and their parsers: the resulting types are valid by construction. Ids may be
//! written in part; all lists share the options of their presentation.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use leasehold::model::{
    ExecutionId, LeaseStatus, Priority, Retention, RetryPolicy, Schedule, Slots, TaskId, TaskState, Ttl,
    ValidationError, WorkerId,
};
use leasehold::store::LockState;

pub(super) use crate::config::{duration, ttl};
use crate::run::WaitTimeout;

/// Minimum number of characters of a short id.
const MIN_ID_CHARS: usize = 4;
const UUID_CHARS: usize = 32;

/// Parses the address of a server: ADDRESS:PORT, or a port of this machine.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, ValidationError> {
    let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
    let local = port.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local.or_else(|| text.parse().ok()).ok_or_else(|| {
        ValidationError::other(format!(
            "'{text}' is not an address; write :7420 for this machine alone, or 0.0.0.0:7420 for all addresses"
        ))
    })
}

/// Filter of `locks list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockFilter {
    /// By the state of the lock.
    State(LockState),
    /// By the status of a live lease.
    Lease(LeaseStatus),
}

/// State that `locks wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitFor {
    /// The lock has no holder
    Free,
    /// The lock has a holder
    Held,
}

const FILTERS: [(&str, LockFilter); 7] = [
    ("active", LockFilter::Lease(LeaseStatus::Active)),
    ("releasing", LockFilter::Lease(LeaseStatus::Releasing)),
    ("released", LockFilter::Lease(LeaseStatus::Released)),
    ("held", LockFilter::State(LockState::Held)),
    ("free", LockFilter::State(LockState::Free)),
    ("waited", LockFilter::State(LockState::Waited)),
    ("stale", LockFilter::State(LockState::Stale)),
];

impl FromStr for LockFilter {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let status = text.strip_prefix("status=").unwrap_or_default();
        let found = FILTERS.iter().find(|(name, _)| *name == status);
        found.map(|(_, filter)| *filter).ok_or_else(|| {
            let names = FILTERS.map(|(name, _)| name).join(", ");
            ValidationError::other(format!("'{text}' is not a filter; write status= and one of {names}"))
        })
    }
}

/// Retention time; `None` means forever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepFor(pub(crate) Option<Ttl>);

pub(super) fn keep_for(text: &str) -> Result<KeepFor, ValidationError> {
    Retention::parse_keep(text).map(KeepFor)
}

pub(super) fn jitter(text: &str) -> Result<Ttl, ValidationError> {
    ttl(text).and_then(Schedule::check_jitter)
}

pub(super) fn wait_timeout(text: &str) -> Result<WaitTimeout, ValidationError> {
    if text == "forever" {
        return Ok(WaitTimeout::Forever);
    }
    match duration(text) {
        Ok(Duration::ZERO) => Ok(WaitTimeout::FailFast),
        Ok(duration) => Ok(WaitTimeout::For(duration)),
        Err(error) => {
            Err(error.map_message(|wrong| format!("{wrong} (0 means do not wait; forever is allowed too)")))
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
    text.parse()
        .map_err(|_| ValidationError::other(format!("'{text}' is not a whole number in the allowed range")))
}

pub(super) fn limit(text: &str) -> Result<u32, ValidationError> {
    match text.parse() {
        Ok(0) | Err(_) => {
            Err(ValidationError::other(format!("'{text}' is not a limit; write a whole number of 1 or more")))
        }
        Ok(limit) => Ok(limit),
    }
}

/// Maximum number of bytes of output that are kept for an attempt.
const MAX_OUTPUT: usize = 1 << 20;

/// Parses a number of bytes, such as `64KiB`.
pub(super) fn output_bytes(text: &str) -> Result<usize, ValidationError> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kb" | "kib" => Some(1 << 10),
        "m" | "mb" | "mib" => Some(1 << 20),
        _ => None,
    };
    let bytes = unit.and_then(|unit| number.parse::<usize>().ok()?.checked_mul(unit));
    bytes.filter(|bytes| *bytes <= MAX_OUTPUT).ok_or_else(|| {
        let message =
            format!("'{text}' is not a size of at most 1MiB; write for example 64KiB, or 0 for none");
        ValidationError::other(message)
    })
}

pub(super) fn attempts(text: &str) -> Result<u32, ValidationError> {
    RetryPolicy { attempts: number(text)?, ..RetryPolicy::default() }.check().map(|retries| retries.attempts)
}

pub(super) fn work_slots(text: &str) -> Result<u32, ValidationError> {
    match text.parse() {
        Ok(slots @ 1..=1000) => Ok(slots),
        _ => Err(ValidationError::other(format!("'{text}' is not a number of slots; write 1 to 1000"))),
    }
}

pub(super) fn end_state(text: &str) -> Result<TaskState, ValidationError> {
    let state: TaskState = text.parse()?;
    if state.is_terminal() {
        Ok(state)
    } else {
        Err(ValidationError::other(format!(
            "tasks that are {state} have not finished; write succeeded, failed or aborted"
        )))
    }
}

pub(super) fn open_state(text: &str) -> Result<TaskState, ValidationError> {
    let state: TaskState = text.parse()?;
    if state.is_terminal() {
        return Err(ValidationError::other(format!(
            "tasks that are {state} have finished; write scheduled, blocked, pending or running"
        )));
    }
    Ok(state)
}

/// Parses the state of an execution; `queued` is another name for `blocked`.
pub(super) fn execution_state(text: &str) -> Result<TaskState, ValidationError> {
    if text == "queued" { Ok(TaskState::Blocked) } else { text.parse() }
}

pub(super) fn exit_code(text: &str) -> Result<i32, ValidationError> {
    let code: Result<u8, _> = text.parse();
    code.map(i32::from)
        .map_err(|_| ValidationError::other(format!("'{text}' is not an exit code; write 0 to 255")))
}

pub(super) fn fraction(text: &str) -> Result<f64, ValidationError> {
    match text.parse() {
        Ok(part) if (0.05..=0.9).contains(&part) => Ok(part),
        _ => Err(ValidationError::other(format!("'{text}' is not a fraction of the ttl; write 0.05 to 0.9"))),
    }
}

pub(super) fn key_value(text: &str) -> Result<(String, String), ValidationError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ValidationError::other(format!("'{text}' is not metadata; write KEY=VALUE"))),
    }
}

/// Id in full, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdArg<I> {
    Full(I),
    Part(PartOfId),
}

/// First or last characters of a UUID, without hyphens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartOfId(String);

impl PartOfId {
    fn parse(text: &str) -> Option<Self> {
        let digits = text.replace('-', "").to_ascii_lowercase();
        let is_part = (MIN_ID_CHARS..UUID_CHARS).contains(&digits.len());
        (is_part && digits.chars().all(|c| c.is_ascii_hexdigit())).then_some(Self(digits))
    }

    pub(crate) fn matches(&self, uuid: &str) -> bool {
        let digits = uuid.replace('-', "");
        digits.starts_with(&self.0) || digits.ends_with(&self.0)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<I: FromStr<Err = ValidationError>> FromStr for IdArg<I> {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        // The id of an execution is that of its task, with a prefix.
        let bare = text.strip_prefix("exec_").unwrap_or(text);
        let full = text.parse().or_else(|error| bare.parse().map_err(|_| error));
        full.map(Self::Full).or_else(|error: ValidationError| {
            PartOfId::parse(bare).map(Self::Part).ok_or_else(|| {
                error.map_message(|wrong| {
                    format!("{wrong}, or at least {MIN_ID_CHARS} of its first or last characters")
                })
            })
        })
    }
}

pub(crate) type TaskIdArg = IdArg<TaskId>;
pub(crate) type ExecutionIdArg = IdArg<ExecutionId>;
pub(crate) type WorkerIdArg = IdArg<WorkerId>;

/// Presentation of a list.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct ListView {
    /// Output format: wide (all columns and whole ids), name (names or ids only, one per line) or json
    #[arg(short, long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    pub(crate) output: Option<OutputFormat>,
    /// Show the list again every 2s, or with --watch=DURATION at this interval, until Ctrl-C
    #[arg(short, long, value_name = "DURATION", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "2s", value_parser = duration)]
    pub(crate) watch: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Wide,
    Json,
    Name,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01a1e21e-0000-7000-8000-00a1deadbeef";

    #[test]
    fn a_wait_timeout_is_zero_a_duration_or_forever() {
        assert_eq!(wait_timeout("0").unwrap(), WaitTimeout::FailFast);
        assert_eq!(wait_timeout("0s").unwrap(), WaitTimeout::FailFast);
        assert_eq!(wait_timeout("10m").unwrap(), WaitTimeout::For(Duration::from_mins(10)));
        assert_eq!(wait_timeout("forever").unwrap(), WaitTimeout::Forever);
        assert_eq!(wait_timeout("30").unwrap(), WaitTimeout::For(Duration::from_secs(30)));
        assert_eq!(wait_timeout("0.5").unwrap(), WaitTimeout::For(Duration::from_millis(500)));
        for invalid in ["", "soon", "-1s", "-1", ".", "1.2.3", "Forever", "99999999999999999999d"] {
            assert!(wait_timeout(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_ttl_is_positive_and_bounded() {
        assert!(ttl("30s").is_ok());
        assert_eq!(ttl("30").unwrap(), ttl("30s").unwrap());
        for invalid in ["0", "0s", "-5s", "", "4000d", "99999999999999999999d", "inf"] {
            assert!(ttl(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn an_address_may_be_a_port_of_this_machine() {
        let parsed = |text: &str| listen_address(text).map(|address| address.to_string());
        for local in [":7420", "7420", "localhost:7420", "127.0.0.1:7420"] {
            assert_eq!(parsed(local).as_deref(), Ok("127.0.0.1:7420"), "{local}");
        }
        assert_eq!(parsed("0.0.0.0:80").as_deref(), Ok("0.0.0.0:80"));
        assert_eq!(parsed("[::1]:80").as_deref(), Ok("[::1]:80"));
        for invalid in ["", ":", ":99999", "host:80", "127.0.0.1", "-1"] {
            assert!(parsed(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_filter_is_named_in_full() {
        assert_eq!("status=stale".parse(), Ok(LockFilter::State(LockState::Stale)));
        assert_eq!("status=active".parse(), Ok(LockFilter::Lease(LeaseStatus::Active)));
        for invalid in ["", "stale", "status=", "status=dead", "state=free"] {
            assert!(invalid.parse::<LockFilter>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn metadata_is_a_key_and_a_value() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(key_value("a=b=c").unwrap(), pair("a", "b=c"));
        assert_eq!(key_value("a=").unwrap(), pair("a", ""));
        assert!(key_value("=b").is_err() && key_value("b").is_err());
    }

    #[test]
    fn a_fraction_is_a_number_within_bounds() {
        assert!(fraction("0.33").is_ok() && fraction("0.9").is_ok());
        for invalid in ["0", "1", "nan", "inf", "-0.3", "", "1/3"] {
            assert!(fraction(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn an_id_is_typed_in_full_or_in_part() {
        assert_eq!(ID.parse::<TaskIdArg>().unwrap(), IdArg::Full(ID.parse().unwrap()));
        assert_eq!(format!("exec_{ID}").parse::<TaskIdArg>().unwrap(), IdArg::Full(ID.parse().unwrap()));
        assert!(matches!("#12".parse::<TaskIdArg>(), Ok(IdArg::Full(_))));
        for part in ["01a1", "01A1E21E-0000", "beef", "00a1deadbeef", "8000-00a1deadbeef"] {
            let Ok(IdArg::Part(part)) = part.parse::<TaskIdArg>() else { panic!("{part}") };
            assert!(part.matches(ID), "{part:?}");
        }
        let Ok(IdArg::Part(part)) = "exec_deadbeef".parse::<ExecutionIdArg>() else { panic!("a part") };
        assert!(part.matches(ID) && !part.matches("01a1e21e-0000-7000-8000-00a1deadbee0"));
        for wrong in ["", "abc", "xyzw", "#x", &format!("{ID}0"), "exec_"] {
            assert!(wrong.parse::<TaskIdArg>().is_err(), "{wrong}");
        }
    }
}
