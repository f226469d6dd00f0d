//! Maps the exit code and the output of a command to the outcome of its task.

use std::time::Duration;

use leasehold::HandlerError;
use leasehold::model::{ExecutionId, MAX_PAYLOAD, Payload, Task};

use super::capture::Kept;
use super::events::Ending;
use crate::exit;
use crate::run::End;

/// Maximum size of a result that is not JSON, in bytes.
const MOST_TEXT: usize = 64 << 10;
/// Maximum size of the captured stderr, in bytes and in lines.
pub(super) const MOST_ERROR: usize = 4 << 10;
const ERROR_LINES: usize = 20;
/// Delay before the next attempt at a task whose command was ended early: practically none.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Outcome of an attempt, with a message if it did not succeed.
pub(super) struct Outcome {
    pub(super) result: Result<Option<Payload>, HandlerError>,
    pub(super) trouble: Option<String>,
    pub(super) ending: Ending,
    /// Whether another attempt follows.
    pub(super) will_retry: bool,
}

impl Outcome {
    /// Determines the outcome. `hurried` states whether the worker stopped the command because it
    /// shuts down.
    pub(super) fn new(end: End, task: &Task, hurried: bool, out: Kept, error: Kept) -> Self {
        let is_execution = ExecutionId::of_task(task).is_some();
        let gives_up = matches!(end, End::Code(exit::BAD_DATA | exit::CONFIG));
        let (setback, what): (fn(String) -> HandlerError, _) = match end {
            End::Code(exit::SUCCESS) => return Self::succeeded(result(out)),
            // An execution that has started must not start again: a retry would be another
            // execution.
            End::Code(code @ exit::TRY_LATER) if is_execution => {
                (fail, format!("the command failed with exit code {code}"))
            }
            End::Stopped if is_execution => {
                let trouble = Some("the command was ended".to_owned());
                // If the task was cancelled, the worker knows that and reports it instead of this
                // error.
                let setback = if hurried {
                    HandlerError::abort("shutdown: its worker ended before it was done")
                } else {
                    HandlerError::fail("lease lost: the command was ended before its lease could end")
                };
                return Self { result: Err(setback), trouble, ending: Ending::Stopped, will_retry: false };
            }
            End::Code(exit::TRY_LATER) => {
                let pause = task.retries.first.as_duration();
                let trouble = Some("put off by the command".to_owned());
                let result = Err(HandlerError::snooze(pause));
                return Self { result, trouble, ending: Ending::Snoozed, will_retry: true };
            }
            End::Stopped => {
                let trouble = Some("the command was ended".to_owned());
                let result = Err(HandlerError::snooze(AT_ONCE));
                return Self { result, trouble, ending: Ending::Stopped, will_retry: true };
            }
            End::Code(code @ (exit::BAD_DATA | exit::CONFIG)) => {
                (fail, format!("the command gave up with exit code {code}"))
            }
            End::Code(code) => (retry, format!("the command failed with exit code {code}")),
            End::Signal(signal) => (retry, format!("the command was ended by signal {signal}")),
            End::NotRun => (retry, "the command could not be run".to_owned()),
            End::Killed => (retry, "the keeper of the command was killed".to_owned()),
        };
        let why = match last_lines(error) {
            last if last.is_empty() => what.clone(),
            last => format!("{what}\n{last}"),
        };
        let will_retry = !gives_up && has_attempts_left(task);
        Self { result: Err(setback(why)), trouble: Some(what), ending: Ending::Failed, will_retry }
    }

    fn succeeded(result: Option<Payload>) -> Self {
        Self { result: Ok(result), trouble: None, ending: Ending::Succeeded, will_retry: false }
    }

    pub(super) fn not_started(task: &Task, error: &std::io::Error) -> Self {
        let what = format!("the command could not be started: {error}");
        let (result, will_retry) = (Err(HandlerError::retry(&what)), has_attempts_left(task));
        Self { result, trouble: Some(what), ending: Ending::Failed, will_retry }
    }
}

/// Whether a failed attempt is followed by another. An execution is attempted once.
fn has_attempts_left(task: &Task) -> bool {
    ExecutionId::of_task(task).is_none() && task.attempt < task.retries.attempts
}

fn retry(why: String) -> HandlerError {
    HandlerError::retry(why)
}

fn fail(why: String) -> HandlerError {
    HandlerError::fail(why)
}

/// Returns the capture for stdout.
pub(super) fn keep_out() -> Kept {
    Kept::first(MAX_PAYLOAD)
}

/// Returns the capture for stderr.
pub(super) fn keep_error() -> Kept {
    Kept::last(MOST_ERROR)
}

/// Returns the output as it is if it is JSON, else as a JSON string; `None` if there is no output.
fn result(out: Kept) -> Option<Payload> {
    let Kept::First { bytes, more, .. } = out else { return None };
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let json = if more { None } else { Payload::new(text).ok() };
    json.or_else(|| {
        let cut = &text[..text.floor_char_boundary(MOST_TEXT)];
        let end = if more || cut.len() < text.len() { "…" } else { "" };
        Payload::of(&format!("{cut}{end}")).ok()
    })
}

fn last_lines(error: Kept) -> String {
    let Kept::Last { most, bytes } = error else { return String::new() };
    let bytes = &bytes[bytes.len().saturating_sub(most)..];
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<_> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(ERROR_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(text: &str) -> Option<String> {
        let (bytes, more) = (text.as_bytes().to_vec(), false);
        result(Kept::First { most: MAX_PAYLOAD, bytes, more }).map(|payload| payload.as_str().to_owned())
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
    fn the_last_lines_tell_what_went_wrong() {
        let text = (0..30).map(|line| format!("line {line}")).collect::<Vec<_>>().join("\n");
        let last = last_lines(Kept::Last { most: MOST_ERROR, bytes: text.into_bytes() });
        assert!(last.starts_with("line 10\n") && last.ends_with("line 29"), "{last}");
    }
}
