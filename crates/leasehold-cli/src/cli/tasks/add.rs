//! `leasehold tasks add`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use leasehold::model::{
    LockName, Payload, Priority, QueueName, RetryPolicy, TaskKey, Timestamp, Ttl, ValidationError,
};

use crate::cli::values;
use crate::cli::workflows::ReuseArg;

const EXAMPLES: &str = "\
Examples:
  leasehold tasks add mail --payload '{\"to\": \"ada\"}' --key welcome-ada
  leasehold tasks add report --payload @order.json --run-at 2030-01-01T06:00:00Z
  find . -name '*.mp4' -printf '\"%p\"\\n' | leasehold tasks add video --lines -";

/// Add a task to a queue and print its id
///
/// With --key, a task with the same key and payload is not added again: the id of the existing task, the word duplicate
/// and its state are printed. If that task has failed or was aborted, the exit code is 1. See --reuse.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AddArgs {
    /// Name of the queue; it is created with its first task
    pub(crate) queue: QueueName,
    /// Payload of the task: JSON, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) payload: Option<PayloadSource>,
    /// Add a task for each line of this file, or of stdin if it is -; each line is a JSON payload
    #[arg(long, value_name = "FILE", allow_hyphen_values = true, conflicts_with_all = ["payload", "key"])]
    pub(crate) lines: Option<PathBuf>,
    /// Idempotency key, unique per queue
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<TaskKey>,
    /// When the key of an earlier task may be reused, also with another payload [default: never]
    #[arg(long, value_name = "WHEN", value_enum, requires = "key")]
    pub(crate) reuse: Option<ReuseArg>,
    /// Earliest start, such as 2030-01-01T06:00:00Z
    #[arg(long, value_name = "TIME", value_parser = values::time, conflicts_with = "delay")]
    pub(crate) run_at: Option<Timestamp>,
    /// Delay before the earliest start
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) delay: Option<Duration>,
    /// Priority among the pending tasks, -1000 to 1000: each step counts like 30 s of waiting
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    /// Lock that the task holds while it runs; other tasks are not delayed while it waits
    #[arg(long, value_name = "LOCK")]
    pub(crate) lock: Option<LockName>,
    #[command(flatten)]
    pub(crate) retry: RetryOptions,
}

/// Retry policy of a task.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RetryOptions {
    /// Maximum number of attempts, 1 to 1000 [default: 5]
    #[arg(long, value_name = "N", value_parser = values::attempts, allow_hyphen_values = true)]
    max_attempts: Option<u32>,
    /// Delay after the first failed attempt; doubles with each further one, up to an hour [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    backoff: Option<Ttl>,
}

impl RetryOptions {
    /// Returns the policy with the values of these options, and those of `before` for the rest.
    pub(crate) fn apply_to(self, before: RetryPolicy) -> RetryPolicy {
        let first = self.backoff.unwrap_or(before.first);
        RetryPolicy {
            attempts: self.max_attempts.unwrap_or(before.attempts),
            first,
            longest: before.longest.max(first),
        }
    }
}

/// Source of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PayloadSource {
    Inline(Payload),
    File(PathBuf),
    Stdin,
}

impl FromStr for PayloadSource {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        match (text, text.strip_prefix('@')) {
            ("-", _) => Ok(Self::Stdin),
            (_, Some("")) => Err(ValidationError("there is no file name after '@'".to_owned())),
            (_, Some(file)) => Ok(Self::File(file.into())),
            (json, None) => Payload::new(json.trim()).map(Self::Inline),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_a_file_or_stdin() {
        assert_eq!("-".parse(), Ok(PayloadSource::Stdin));
        assert_eq!("@a b".parse(), Ok(PayloadSource::File("a b".into())));
        assert_eq!("-1".parse(), Ok(PayloadSource::Inline(Payload::new("-1").unwrap())));
        for invalid in ["", "@", "{", "hello", "'1'"] {
            assert!(invalid.parse::<PayloadSource>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn the_maximum_delay_is_never_shorter_than_the_first() {
        let options = RetryOptions { max_attempts: None, backoff: Some(Ttl::from_secs(7200)) };
        let retries = options.apply_to(RetryPolicy::default());
        assert_eq!((retries.first, retries.longest), (Ttl::from_secs(7200), Ttl::from_secs(7200)));
        assert_eq!(retries.attempts, RetryPolicy::default().attempts);
    }
}
