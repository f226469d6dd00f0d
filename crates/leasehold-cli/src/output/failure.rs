//! What went wrong: in words, with what to do next, and as JSON for programs. And which exit code it means.

use std::error::Error as _;
use std::fmt::Display;
use std::io::{self, Write};

use leasehold::Error;
use leasehold::model::{Conflict, HeldBy, Invalid, LockName};
use serde::Serialize;

use super::json;
use super::paint::Paint;
use super::program::with_store;
use super::secrets::without_passwords;
use super::text::{lines, visible};
use crate::exit;

/// The end of a command that did not succeed.
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
    /// What the process exits with.
    #[serde(skip)]
    pub(crate) exit: i32,
    /// There is nothing to say, as when the reader of our output has gone.
    #[serde(skip)]
    silent: bool,
}

/// What a program may want to know besides the code.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Details {
    Lock(Blocked),
    Workflow(WorkflowBlocked),
}

/// The workflow that could not be started, and the execution in the way: the fields of the HTTP API.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowBlocked {
    workflow_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    existing_execution_id: Option<String>,
    message: String,
}

/// Who is in the way, for programs.
#[derive(Debug, Clone, Serialize)]
struct Blocked {
    lock: String,
    holders: Vec<BlockedBy>,
    waiters: u32,
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

impl Failure {
    /// The command line makes no sense.
    pub(crate) fn usage(error: impl Into<String>) -> Self {
        Self::new(exit::USAGE, "USAGE", error)
    }

    /// The settings are wrong.
    pub(crate) fn config(error: impl Into<String>) -> Self {
        Self::new(exit::CONFIG, "BAD_CONFIG", error)
    }

    /// What is needed is not to be had now.
    pub(crate) fn unavailable(error: impl Into<String>) -> Self {
        Self::new(exit::UNAVAILABLE, "ADDRESS_TAKEN", error)
    }

    /// The limit on open files is too low.
    pub(crate) fn too_few_files(error: impl Into<String>) -> Self {
        Self::new(exit::CONFIG, "TOO_FEW_FILES", error)
    }

    /// The command cannot be run like this.
    pub(crate) fn command(exit: i32, error: impl Into<String>) -> Self {
        Self::new(exit, "COMMAND_NOT_RUN", error)
    }

    /// Patience is over.
    pub(crate) fn timeout(error: impl Into<String>) -> Self {
        Self::new(exit::NOT_ACQUIRED, "TIMEOUT", error)
    }

    /// There is no lease to do this with.
    pub(crate) fn not_held(error: impl Into<String>) -> Self {
        Self::new(exit::FAILURE, "LOCK_NOT_HELD", error)
    }

    /// What this belongs to is over.
    pub(crate) fn lost(error: impl Into<String>) -> Self {
        Self::new(exit::LEASE_LOST, "LEASE_LOST", error)
    }

    /// An execution of a workflow has failed or was aborted.
    pub(crate) fn execution_failed(error: impl Into<String>) -> Self {
        Self::new(exit::FAILURE, "EXECUTION_FAILED", error)
    }

    /// The execution of a key is not over yet.
    pub(crate) fn execution_open(error: impl Into<String>) -> Self {
        Self::new(exit::NOT_ACQUIRED, "EXECUTION_NOT_FINISHED", error)
    }

    /// A person said no.
    pub(crate) fn declined(error: impl Into<String>) -> Self {
        Self::new(exit::FAILURE, "DECLINED", error)
    }

    /// A fault of this program.
    pub(crate) fn internal(error: impl Display) -> Self {
        Self::new(exit::INTERNAL, "INTERNAL", error.to_string())
    }

    /// Our own output could not be written. If its reader has gone, that is not an error.
    #[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
    pub(crate) fn output(error: io::Error) -> Self {
        let gone = error.kind() == io::ErrorKind::BrokenPipe;
        let exit = if gone { exit::SUCCESS } else { exit::FAILURE };
        let failure = Self::new(exit, "OUTPUT", format!("the output cannot be written: {error}"));
        Self { silent: gone, ..failure }
    }

    fn new(exit: i32, code: &'static str, error: impl Into<String>) -> Self {
        Self {
            success: false,
            error: without_passwords(&error.into()),
            code,
            hints: Vec::new(),
            causes: Vec::new(),
            details: None,
            exit,
            silent: false,
        }
    }

    /// The same with another exit code.
    pub(crate) fn exit_with(self, exit: i32) -> Self {
        Self { exit, ..self }
    }

    /// The same, with nothing to say.
    pub(crate) fn silent(self) -> Self {
        Self { silent: true, ..self }
    }

    /// The same with other words.
    pub(crate) fn in_words(self, error: impl Into<String>) -> Self {
        let error = without_passwords(&error.into());
        Self { error, ..self }
    }

    /// Adds what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(without_passwords(&hint.into()));
        self
    }

    /// The same, to be followed by other hints.
    pub(crate) fn without_hints(self) -> Self {
        let hints = Vec::new();
        Self { hints, ..self }
    }

    /// What is wrong, in one line.
    pub(crate) fn message(&self) -> &str {
        &self.error
    }

    /// What to do next and what lies behind it, one line each.
    pub(crate) fn advice(&self) -> impl Iterator<Item = String> {
        let hints = self.hints.iter().map(|hint| {
            if hint.starts_with("usage: ") { hint.clone() } else { format!("hint: {}", with_store(hint)) }
        });
        hints.chain(self.causes.iter().map(|cause| format!("cause: {cause}")))
    }

    /// Says it on stderr.
    pub(crate) fn print(&self, json: bool) {
        if self.silent {
            return;
        }
        let text = match json::to_line(self) {
            Ok(text) if json => text + "\n",
            _ => self.text(Paint::of(&io::stderr())),
        };
        // There is nobody to complain to when stderr is closed.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn text(&self, paint: Paint) -> String {
        let first = format!("{} {}", paint.bad("leasehold:"), visible(&self.error));
        let advice = self.advice().map(|line| {
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            format!("{} {}", paint.bold(word), visible(rest))
        });
        lines(std::iter::once(first).chain(advice))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut causes = Vec::new();
        let mut cause = error.source();
        while let Some(source) = cause {
            let text = without_passwords(&source.to_string());
            // Some drivers say the same once more, with a number before it.
            causes.pop_if(|before: &mut String| text.ends_with(before.as_str()));
            causes.push(text);
            cause = source.source();
        }
        Self {
            hints: error.hint().iter().map(|hint| without_passwords(hint)).collect(),
            causes,
            details: match &error {
                Error::Conflict { lock, conflict, .. } => Some(Details::Lock(Blocked::new(lock, conflict))),
                Error::WorkflowLocked { workflow, execution, reason, .. } => {
                    Some(Details::Workflow(WorkflowBlocked {
                        workflow_id: workflow.to_string(),
                        existing_execution_id: execution.map(|id| id.to_string()),
                        message: reason.clone(),
                    }))
                }
                Error::ExecutionKeyReused { workflow, execution, .. } => {
                    Some(Details::Workflow(WorkflowBlocked {
                        workflow_id: workflow.to_string(),
                        existing_execution_id: Some(execution.to_string()),
                        message: error.to_string(),
                    }))
                }
                _ => None,
            }
            .map(Box::new),
            ..Self::new(exit::of(&error), error.code(), error.to_string())
        }
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Error::from(invalid).into()
    }
}

impl Blocked {
    fn new(lock: &LockName, conflict: &Conflict) -> Self {
        Self {
            lock: lock.to_string(),
            holders: conflict.holders.iter().map(|held| BlockedBy::new(held, conflict)).collect(),
            waiters: conflict.waiters,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_and_what_next_and_why() {
        let mut failure = Failure::config("no such file").hint("make it").hint("or not");
        failure.causes = vec!["it is\u{7} gone".to_owned()];
        assert_eq!(
            failure.text(Paint::PLAIN),
            "leasehold: no such file\nhint: make it\nhint: or not\ncause: it is\\u{7} gone\n"
        );
        assert_eq!(
            serde_json::to_string(&failure).unwrap(),
            r#"{"success":false,"error":"no such file","code":"BAD_CONFIG","hint":"make it; or not","causes":["it is\u0007 gone"]}"#
        );
    }
}
