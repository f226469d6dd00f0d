//! Maps the exit code and the output of a command to the outcome of its task.

use std::time::Duration;

use leasehold::HandlerError;
use leasehold::model::{ExecutionId, MAX_PAYLOAD, Payload, Task};

use super::output::{Captured, Ending};
use crate::exit;
use crate::run::AttemptEnd;

/// Maximum size of a result that is not JSON, in bytes.
const MAX_TEXT: usize = 64 << 10;
/// Maximum size of the captured stderr, in bytes and in lines.
pub(super) const MAX_STDERR: usize = 4 << 10;
const MAX_STDERR_LINES: usize = 20;
/// Delay before the next attempt at a task whose command was ended early: practically none.
const NO_DELAY: Duration = Duration::from_millis(1);

/// Outcome of an attempt, with a message if it did not succeed.
pub(super) struct Outcome {
    pub(super) result: Result<Option<Payload>, HandlerError>,
    pub(super) error: Option<String>,
    pub(super) ending: Ending,
    /// Whether another attempt follows.
    pub(super) will_retry: bool,
}

impl Outcome {
    /// Determines the outcome. `stopping` states whether the worker stopped the command because it
    /// shuts down.
    pub(super) fn new(
        end: AttemptEnd,
        task: &Task,
        stopping: bool,
        stdout: Captured,
        stderr: Captured,
    ) -> Self {
        let is_execution = ExecutionId::of_task(task).is_some();
        let gives_up = matches!(end, AttemptEnd::Code(exit::BAD_DATA | exit::CONFIG));
        let (to_error, message): (fn(String) -> HandlerError, _) = match end {
            AttemptEnd::Code(exit::SUCCESS) => return Self::succeeded(result(stdout)),
            // An execution that has started must not start again: a retry would be another
            // execution.
            AttemptEnd::Code(code @ exit::TRY_LATER) if is_execution => {
                (fail, format!("the command failed with exit code {code}"))
            }
            AttemptEnd::Stopped if is_execution => {
                let error = Some("the command was ended".to_owned());
                // If the task was cancelled, the worker knows that and reports it instead of this
                // error.
                let result = if stopping {
                    HandlerError::abort("shutdown: the worker stopped before the command had finished")
                } else {
                    HandlerError::fail("lease lost: the command was ended before its lease could end")
                };
                return Self { result: Err(result), error, ending: Ending::Stopped, will_retry: false };
            }
            AttemptEnd::Code(exit::TRY_LATER) => {
                let pause = task.retries.initial_delay.as_duration();
                let error = Some("snoozed by the command".to_owned());
                let result = Err(HandlerError::snooze(pause));
                return Self { result, error, ending: Ending::Snoozed, will_retry: true };
            }
            AttemptEnd::Stopped => {
                let error = Some("the command was ended".to_owned());
                let result = Err(HandlerError::snooze(NO_DELAY));
                return Self { result, error, ending: Ending::Stopped, will_retry: true };
            }
            AttemptEnd::Code(code @ (exit::BAD_DATA | exit::CONFIG)) => {
                (fail, format!("the command failed permanently with exit code {code}"))
            }
            AttemptEnd::Code(code) => (retry, format!("the command failed with exit code {code}")),
            AttemptEnd::Signal(signal) => (retry, format!("the command was ended by signal {signal}")),
            AttemptEnd::NotRun => (retry, "the command could not be run".to_owned()),
            AttemptEnd::Killed => (retry, "the lease monitor of the command was killed".to_owned()),
        };
        let details = match last_lines(stderr) {
            last if last.is_empty() => message.clone(),
            last => format!("{message}\n{last}"),
        };
        let will_retry = !gives_up && has_attempts_left(task);
        Self { result: Err(to_error(details)), error: Some(message), ending: Ending::Failed, will_retry }
    }

    fn succeeded(result: Option<Payload>) -> Self {
        Self { result: Ok(result), error: None, ending: Ending::Succeeded, will_retry: false }
    }

    pub(super) fn not_started(task: &Task, error: &std::io::Error) -> Self {
        let message = format!("the command could not be started: {error}");
        let (result, will_retry) = (Err(HandlerError::retry(&message)), has_attempts_left(task));
        Self { result, error: Some(message), ending: Ending::Failed, will_retry }
    }
}

/// Whether a failed attempt is followed by another. An execution is attempted once.
fn has_attempts_left(task: &Task) -> bool {
    ExecutionId::of_task(task).is_none() && task.attempt < task.retries.attempts
}

fn retry(reason: String) -> HandlerError {
    HandlerError::retry(reason)
}

fn fail(reason: String) -> HandlerError {
    HandlerError::fail(reason)
}

/// Returns the capture for stdout.
pub(super) fn capture_stdout() -> Captured {
    Captured::first(MAX_PAYLOAD)
}

/// Returns the capture for stderr.
pub(super) fn capture_stderr() -> Captured {
    Captured::last(MAX_STDERR)
}

/// Returns the output as it is if it is JSON, else as a JSON string; `None` if there is no output.
fn result(stdout: Captured) -> Option<Payload> {
    let Captured::First { bytes, more, .. } = stdout else { return None };
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let json = if more { None } else { Payload::new(text).ok() };
    json.or_else(|| {
        let cut = &text[..text.floor_char_boundary(MAX_TEXT)];
        let end = if more || cut.len() < text.len() { "…" } else { "" };
        Payload::of(&format!("{cut}{end}")).ok()
    })
}

fn last_lines(stderr: Captured) -> String {
    let Captured::Last { limit, bytes } = stderr else { return String::new() };
    let bytes = &bytes[bytes.len().saturating_sub(limit)..];
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<_> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(MAX_STDERR_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(text: &str) -> Option<String> {
        let (bytes, more) = (text.as_bytes().to_vec(), false);
        result(Captured::First { limit: MAX_PAYLOAD, bytes, more }).map(|payload| payload.as_str().to_owned())
    }

    #[test]
    fn a_result_is_json_as_it_is_or_a_text() {
        assert_eq!(out("  \n"), None);
        assert_eq!(out("{\"a\": 1.10}\n").unwrap(), "{\"a\": 1.10}");
        assert_eq!(out("it is done\n").unwrap(), "\"it is done\"");
        assert_eq!(out("1\n2\n").unwrap(), "\"1\\n2\"");
        assert!(out(&"\u{1}é".repeat(200_000)).unwrap().ends_with("…\""));
    }

    #[test]
    fn the_last_lines_of_stderr_are_the_error() {
        let text = (0..30).map(|line| format!("line {line}")).collect::<Vec<_>>().join("\n");
        let last = last_lines(Captured::Last { limit: MAX_STDERR, bytes: text.into_bytes() });
        assert!(last.starts_with("line 10\n") && last.ends_with("line 29"), "{last}");
    }
}
