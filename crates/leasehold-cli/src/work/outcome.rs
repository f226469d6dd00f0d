//! Maps the exit code and the output of a command to the outcome of its task.

use std::time::Duration;

use leasehold::HandlerError;
use leasehold::model::{ExecutionId, Payload, Task};

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
        let message = match end {
            AttemptEnd::Code(exit::SUCCESS) => {
                let result = Ok(result(stdout));
                return Self { result, error: None, ending: Ending::Succeeded, will_retry: false };
            }
            AttemptEnd::Stopped => {
                let result = match (is_execution, stopping) {
                    (false, _) => HandlerError::snooze(NO_DELAY),
                    // If the task was cancelled, the worker knows that and reports it instead of this error.
                    (true, true) => {
                        HandlerError::abort("shutdown: the worker stopped before the command had finished")
                    }
                    (true, false) => {
                        HandlerError::fail("lease lost: the command was ended before its lease could end")
                    }
                };
                let (error, will_retry) = (Some("the command was ended".to_owned()), !is_execution);
                return Self { result: Err(result), error, ending: Ending::Stopped, will_retry };
            }
            AttemptEnd::Code(exit::TRY_LATER) if !is_execution => {
                let result = Err(HandlerError::snooze(task.retries.initial_delay.as_duration()));
                let error = Some("snoozed by the command".to_owned());
                return Self { result, error, ending: Ending::Snoozed, will_retry: true };
            }
            AttemptEnd::Code(code) if gives_up => {
                format!("the command failed permanently with exit code {code}")
            }
            AttemptEnd::Code(code) => format!("the command failed with exit code {code}"),
            AttemptEnd::Signal(signal) => format!("the command was ended by signal {signal}"),
            AttemptEnd::NotRun => "the command could not be run".to_owned(),
            AttemptEnd::Killed => "the lease monitor of the command was killed".to_owned(),
        };
        let details = match last_lines(stderr) {
            last if last.is_empty() => message.clone(),
            last => format!("{message}\n{last}"),
        };
        // An execution that has started must not start again: a retry would be another execution.
        let must_not_retry = gives_up || (is_execution && end == AttemptEnd::Code(exit::TRY_LATER));
        let result =
            Err(if must_not_retry { HandlerError::fail(details) } else { HandlerError::retry(details) });
        let will_retry = !gives_up && has_attempts_left(task);
        Self { result, error: Some(message), ending: Ending::Failed, will_retry }
    }

    /// Returns the outcome if the time limit of the attempt was reached: a command that was ended because of
    /// it has failed. An execution is aborted then, as by any other end.
    pub(super) fn timed_out(self, task: &Task) -> Self {
        if self.ending != Ending::Stopped {
            return self;
        }
        let error = Some("the command was ended: it reached its time limit".to_owned());
        match ExecutionId::of_task(task) {
            Some(_) => Self { error, ..self },
            None => Self { error, ending: Ending::Failed, will_retry: has_attempts_left(task), ..self },
        }
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
    use leasehold::model::MAX_PAYLOAD;

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
