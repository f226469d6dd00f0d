//! `leasehold tasks add`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use leasehold::model::{
    LockName, Payload, Priority, QueueName, RetryPolicy, TaskKey, Timestamp, Ttl, ValidationError,
};

use crate::cli::values;
use crate::cli::workflows::Again;

const EXAMPLES: &str = "\
Examples:
  leasehold tasks add mail --payload '{\"to\": \"ada\"}' --key welcome-ada
  leasehold tasks add report --payload @order.json --run-at 2030-01-01T06:00:00Z
  find . -name '*.mp4' -printf '\"%p\"\\n' | leasehold tasks add video --lines -";

/// Add a task to a queue, and print its id
///
/// With --key, a task that is there already with the same key and payload is not added again: its id is printed, the word
/// duplicate, and where it stands. If it has failed or was aborted, the exit code is 1: it will not be done. See --reuse.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AddArgs {
    /// The queue; it comes into being with its first task
    pub(crate) queue: QueueName,
    /// What the task is about: JSON, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) payload: Option<Source>,
    /// Add many: each line of this file, or of stdin if it is -, is the JSON payload of a task
    #[arg(long, value_name = "FILE", allow_hyphen_values = true, conflicts_with_all = ["payload", "key"])]
    pub(crate) lines: Option<PathBuf>,
    /// What makes it the same task when it is added again: one per queue
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<TaskKey>,
    /// When the key of an earlier task may be used anew, also with another payload [default: never]
    #[arg(long, value_name = "WHEN", value_enum, requires = "key")]
    pub(crate) reuse: Option<Again>,
    /// Not before this time, such as 2030-01-01T06:00:00Z
    #[arg(long, value_name = "TIME", value_parser = values::time, conflicts_with = "delay")]
    pub(crate) run_at: Option<Timestamp>,
    /// Not before so long from now
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) delay: Option<Duration>,
    /// Weight among the tasks that could run, -1000 to 1000: each step counts as having come 30 s earlier
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    /// It runs only while it holds this lock; other tasks are not held up by it
    #[arg(long, value_name = "LOCK")]
    pub(crate) lock: Option<LockName>,
    #[command(flatten)]
    pub(crate) steps: Steps,
}

/// How often a task is tried.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Steps {
    /// How often it is tried, 1 to 1000 [default: 5]
    #[arg(long, value_name = "N", value_parser = values::attempts, allow_hyphen_values = true)]
    max_attempts: Option<u32>,
    /// The pause after the first failed attempt; each one after it is twice as long, up to an hour [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    backoff: Option<Ttl>,
}

impl Steps {
    /// What was said, and for the rest what holds already.
    pub(crate) fn over(self, before: RetryPolicy) -> RetryPolicy {
        let first = self.backoff.unwrap_or(before.first);
        RetryPolicy {
            attempts: self.max_attempts.unwrap_or(before.attempts),
            first,
            longest: before.longest.max(first),
        }
    }
}

/// Where a payload comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Inline(Payload),
    File(PathBuf),
    Stdin,
}

impl FromStr for Source {
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
        assert_eq!("-".parse(), Ok(Source::Stdin));
        assert_eq!("@a b".parse(), Ok(Source::File("a b".into())));
        assert_eq!("-1".parse(), Ok(Source::Inline(Payload::new("-1").unwrap())));
        for nonsense in ["", "@", "{", "hello", "'1'"] {
            assert!(nonsense.parse::<Source>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn the_longest_pause_is_never_shorter_than_the_first() {
        let steps = Steps { max_attempts: None, backoff: Some(Ttl::from_secs(7200)) };
        let retries = steps.over(RetryPolicy::default());
        assert_eq!((retries.first, retries.longest), (Ttl::from_secs(7200), Ttl::from_secs(7200)));
        assert_eq!(retries.attempts, RetryPolicy::default().attempts);
    }
}
