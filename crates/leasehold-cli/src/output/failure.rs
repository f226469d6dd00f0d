//! Failures of commands: message, hints, JSON form and exit code.

use std::error::Error as _;
use std::fmt::Display;
use std::io::{self, Write};

use leasehold::Error;
use leasehold::model::{Conflict, HeldBy, Holder, ValidationError};
use serde::Serialize;

use super::hints::{OWN_LOCK, hint, with_store};
use super::secrets::redact;
use super::text::{Style, lines, to_line, visible};
use super::writer::write_if_read;
use crate::exit;
use crate::identity::is_own_lease;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Failure {
    success: bool,
    error: String,
    code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "joined", rename = "hint")]
    hints: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Box<Details>>,
    #[serde(skip)]
    pub(crate) exit: i32,
    /// Whether nothing is printed, as when the reader of our output has closed the pipe.
    #[serde(skip)]
    silent: bool,
}

/// Details for programs, beyond the error code.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Details {
    /// Conflicting holders.
    Lock { lock: String, holders: Vec<BlockedBy>, waiters: u32 },
    /// Workflow that could not be started, and the conflicting execution: the fields of the HTTP API.
    Workflow {
        workflow_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        existing_execution_id: Option<String>,
        message: String,
    },
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockedBy {
    holder: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ref: Option<String>,
    mode: String,
    token: u64,
    since: String,
    until: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_seconds: Option<f64>,
}

/// Code of a failure to write the output.
const OUTPUT: &str = "OUTPUT";

impl Failure {
    pub(crate) fn usage(error: impl Into<String>) -> Self {
        Self::new(exit::USAGE, "USAGE", error)
    }

    pub(crate) fn config(error: impl Into<String>) -> Self {
        Self::new(exit::CONFIG, "BAD_CONFIG", error)
    }

    pub(crate) fn command(exit: i32, error: impl Into<String>) -> Self {
        Self::new(exit, "COMMAND_NOT_RUN", error)
    }

    pub(crate) fn not_held(error: impl Into<String>) -> Self {
        Self::new(exit::FAILURE, "LOCK_NOT_HELD", error)
    }

    pub(crate) fn declined(error: impl Into<String>) -> Self {
        Self::new(exit::FAILURE, "DECLINED", error)
    }

    pub(crate) fn internal(error: impl Display) -> Self {
        Self::new(exit::INTERNAL, "INTERNAL", error.to_string())
    }

    /// Returns a failure for output that could not be written. A closed reader is not an error:
    /// then nothing is printed and the exit code is success.
    #[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
    pub(crate) fn output(error: io::Error) -> Self {
        let is_closed = error.kind() == io::ErrorKind::BrokenPipe;
        let exit = if is_closed { exit::SUCCESS } else { exit::FAILURE };
        let failure = Self::new(exit, OUTPUT, format!("the output cannot be written: {error}"));
        Self { silent: is_closed, ..failure }
    }

    /// Returns the failure of a command that has had its effect, and could not print its result.
    pub(crate) fn after_success(self) -> Self {
        if self.code == OUTPUT {
            self.hint("what the command adds was stored: do not repeat it")
        } else {
            self
        }
    }

    /// Whether the reader of the output has closed the pipe.
    pub(crate) fn is_closed_reader(&self) -> bool {
        self.silent && self.code == OUTPUT
    }

    /// Returns a failure with an exit code, and a stable code for programs that `docs/errors.md` describes.
    pub(crate) fn new(exit: i32, code: &'static str, error: impl Into<String>) -> Self {
        Self {
            success: false,
            error: redact(&error.into()),
            code,
            hints: Vec::new(),
            causes: Vec::new(),
            details: None,
            exit,
            silent: false,
        }
    }

    pub(crate) fn exit_with(self, exit: i32) -> Self {
        Self { exit, ..self }
    }

    pub(crate) fn silent(self) -> Self {
        Self { silent: true, ..self }
    }

    /// Prints the failure even if the reader of the output has closed the pipe.
    pub(crate) fn printed(self) -> Self {
        Self { silent: false, ..self }
    }

    pub(crate) fn with_message(self, error: impl Into<String>) -> Self {
        let error = redact(&error.into());
        Self { error, ..self }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(redact(&hint.into()));
        self
    }

    pub(crate) fn without_hints(self) -> Self {
        let hints = Vec::new();
        Self { hints, ..self }
    }

    pub(crate) fn message(&self) -> &str {
        &self.error
    }

    /// Returns the hints and the causes, one line each.
    pub(crate) fn advice(&self) -> impl Iterator<Item = String> {
        let hints = self.hints.iter().map(|hint| {
            if hint.starts_with("usage: ") { hint.clone() } else { format!("hint: {}", with_store(hint)) }
        });
        hints.chain(self.causes.iter().map(|cause| format!("cause: {cause}")))
    }

    /// Prints the failure to stderr.
    pub(crate) fn print(&self, json: bool) {
        if !self.silent {
            // If stderr is closed there is no other place to report the error.
            let _ = io::stderr().write_all(self.rendered(json).as_bytes());
        }
    }

    /// Prints the failure to stderr, unless stderr is not read: for processes that must end in time.
    pub(crate) fn print_if_read(&self, json: bool) {
        if !self.silent {
            write_if_read(self.rendered(json).as_bytes());
        }
    }

    /// Returns what [`Self::print`] prints.
    pub(crate) fn rendered(&self, json: bool) -> String {
        match to_line(self) {
            Ok(text) if json => text + "\n",
            _ => self.text(Style::of(&io::stderr())),
        }
    }

    fn text(&self, style: Style) -> String {
        let first = format!("{} {}", style.bad("leasehold:"), visible(&self.error));
        let advice = self.advice().map(|line| {
            let (label, rest) = line.split_once(' ').unwrap_or((&line, ""));
            format!("{} {}", style.bold(label), visible(rest))
        });
        lines(std::iter::once(first).chain(advice))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut causes = Vec::new();
        let mut cause = error.source();
        while let Some(source) = cause {
            let text = redact(&source.to_string());
            // Some drivers repeat the inner message with a number before it.
            causes.pop_if(|before: &mut String| text.ends_with(before.as_str()));
            causes.push(text);
            cause = source.source();
        }
        Self {
            hints: hint(&error).iter().map(|hint| redact(hint)).collect(),
            causes,
            details: Details::new(&error).map(Box::new),
            ..Self::new(exit::of(&error), error.code(), error.to_string())
        }
    }
}

impl From<ValidationError> for Failure {
    fn from(invalid: ValidationError) -> Self {
        Error::from(invalid).into()
    }
}

impl Details {
    fn new(error: &Error) -> Option<Self> {
        let (workflow, execution, message) = match error {
            Error::Conflict { lock, conflict, .. } => {
                let holders = conflict.holders.iter().map(|held| BlockedBy::new(held, conflict)).collect();
                return Some(Self::Lock { lock: lock.to_string(), holders, waiters: conflict.waiters });
            }
            Error::WorkflowLocked { workflow, execution, reason, .. } => {
                (workflow, *execution, reason.clone())
            }
            Error::ExecutionKeyReused { workflow, execution, .. } => {
                (workflow, Some(*execution), error.to_string())
            }
            _ => return None,
        };
        let existing_execution_id = execution.map(|id| id.to_string());
        Some(Self::Workflow { workflow_id: workflow.to_string(), existing_execution_id, message })
    }
}

impl BlockedBy {
    fn new(held: &HeldBy, conflict: &Conflict) -> Self {
        Self {
            holder: held.holder.to_string(),
            lease_ref: held.lease.map(|lease| lease.to_string()),
            expires_in_seconds: conflict.left(held).map(|left| left.as_secs_f64()),
            mode: held.mode.to_string(),
            token: held.token.get(),
            since: format!("{:#}", held.since),
            until: format!("{:#}", held.until),
        }
    }
}

fn joined<S: serde::Serializer>(hints: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&with_store(&hints.join("; ")))
}

/// Returns the failure of a lock request; a conflict gets the exit code `conflict_exit`. `named` is
/// the holder name that the caller specified, if any: a lease under that name is the caller's own.
pub(crate) fn conflict_failure(error: Error, named: Option<&Holder>, conflict_exit: i32) -> Failure {
    let Error::Conflict { lock, mut conflict, waited } = error.clone() else {
        return error.into();
    };
    let failure = Failure::from(error).exit_with(conflict_exit);
    if conflict_exit == exit::SUCCESS {
        return failure.silent(); // Not a failure for this caller: cron must not send mail about it.
    }
    let mut own = false;
    for held in &mut conflict.holders {
        if is_own_lease(&lock, &held.holder, held.token, named) {
            own = true;
            let name = format!("yourself ({})", held.holder);
            held.holder = Holder::new(name).unwrap_or_else(|_| held.holder.clone());
        }
    }
    if !own {
        return failure;
    }
    let message = Error::Conflict { lock, conflict, waited }.to_string();
    failure.with_message(message).without_hints().hint(OWN_LOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_prints_message_hints_and_causes() {
        let mut failure = Failure::config("no such file").hint("make it").hint("or not");
        failure.causes = vec!["it is\u{7} gone".to_owned()];
        assert_eq!(
            failure.text(Style::PLAIN),
            "leasehold: no such file\nhint: make it\nhint: or not\ncause: it is\\u{7} gone\n"
        );
        assert_eq!(
            serde_json::to_string(&failure).unwrap(),
            r#"{"success":false,"error":"no such file","code":"BAD_CONFIG","hint":"make it; or not","causes":["it is\u0007 gone"]}"#
        );
    }
}
