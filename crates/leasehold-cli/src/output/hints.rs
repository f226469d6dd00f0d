//! Hints for errors of the library, and the commands in them, with the store of this process.

use std::borrow::Cow;
use std::sync::OnceLock;

use leasehold::model::{LockName, lock_command};
use leasehold::{Error, StoreRemedy};

pub(super) const OWN_LOCK: &str =
    "you already hold the lock: do the work under that lease, or release it first";

static PROGRAM: OnceLock<Program> = OnceLock::new();

struct Program {
    /// Prefix of a command: `leasehold`, with `--store` if the store is not the default one.
    prefix: String,
    /// Whether the store is a server.
    is_remote: bool,
    is_command: fn(&str) -> bool,
}

const NAME: &str = "leasehold";

/// Sets the prefix of commands in hints, and how a command is recognized. Only the first call has an
/// effect: a process has one store.
pub(crate) fn set_program(prefix: String, is_remote: bool, is_command: fn(&str) -> bool) {
    let _ = PROGRAM.set(Program { prefix, is_remote, is_command });
}

/// Returns a command of this program for a hint, with the store of this process.
pub(crate) fn command(rest: &str) -> String {
    format!("{} {rest}", PROGRAM.get().map_or(NAME, |program| program.prefix.as_str()))
}

/// Inserts the store into each `leasehold COMMAND` of the text. Without the store, such a command
/// would use the default store.
pub(super) fn with_store(text: &str) -> Cow<'_, str> {
    match PROGRAM.get() {
        Some(program) if program.prefix != NAME => Cow::Owned(replaced(text, program)),
        _ => Cow::Borrowed(text),
    }
}

fn replaced(text: &str, program: &Program) -> String {
    let mut written = String::with_capacity(text.len() + program.prefix.len());
    let mut rest = text;
    while let Some(at) = rest.find("leasehold ") {
        let (before, found) = rest.split_at(at);
        let after = &found[NAME.len()..];
        let word = after.trim_start().split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        let starts = !before.ends_with(|c: char| c.is_alphanumeric() || "-_./".contains(c));
        written += before;
        // Tokens are managed in the store of a server, not through the server.
        let applies = (program.is_command)(word) && !(word == "token" && program.is_remote);
        written += if starts && applies { program.prefix.as_str() } else { NAME };
        rest = after;
    }
    written + rest
}

/// Returns the hint for an error of the library: the command that shows more, or what to do instead.
pub(super) fn hint(error: &Error) -> Option<String> {
    Some(match error {
        Error::Conflict { lock, conflict, .. } if conflict.full => {
            format!("see who waits with: {}", lock_command("leasehold locks status", lock.as_str(), ""))
        }
        Error::Conflict { lock, .. } => {
            format!("wait for it with --wait 10m, or see why with: {}", why(lock))
        }
        Error::Deadlock { deadlock, .. } => match deadlock.remedy("leasehold") {
            Some(command) => format!("take the locks together: {command}"),
            None => OWN_LOCK.to_owned(),
        },
        Error::NotHeld { lock, .. } | Error::Lost { lock, .. } => {
            format!("see what happened with: {}", lock_command("leasehold history", lock.as_str(), ""))
        }
        Error::UnknownTask(_) => with_command(error, "; list tasks with: leasehold tasks list"),
        Error::UnknownExecution(_) => {
            with_command(error, "; list executions with: leasehold executions list")
        }
        Error::UnknownQueue { .. } => "see the queues with: leasehold queues list".to_owned(),
        Error::UnknownSchedule(_) => "see them with: leasehold schedules list".to_owned(),
        Error::VersionConflict { task, .. } => format!("read it again with: leasehold tasks show {task}"),
        Error::KeyReused { task, .. } => {
            with_command(error, &format!(", or see that task with: leasehold tasks show {task}"))
        }
        Error::TaskState { task, .. } | Error::LockQueueFull { task, .. } => {
            format!("see it with: leasehold tasks show {task}")
        }
        Error::WorkflowLocked { execution: Some(execution), .. } => {
            format!("try again later, or see it with: leasehold executions show {execution}")
        }
        Error::WorkflowLocked { workflow, .. } => {
            format!("see who has it with: {}", why(&workflow.lock()))
        }
        Error::ExecutionKeyReused { execution, .. } => {
            with_command(error, &format!(", or see it with: leasehold executions show {execution}"))
        }
        Error::ExecutionFinished { execution, .. } => {
            format!("see it with: leasehold executions show {execution}")
        }
        Error::Store { remedy: Some(remedy), .. } => store_hint(error.hint().unwrap_or_default(), *remedy),
        _ => return error.hint().map(str::to_owned),
    })
}

fn why(lock: &LockName) -> String {
    lock_command("leasehold locks why", lock.as_str(), "")
}

/// Returns the hint of the library on a store, with the command that does what helps.
fn store_hint(hint: &str, remedy: StoreRemedy) -> String {
    match remedy {
        StoreRemedy::CreateTable => {
            "create it with: leasehold store init; or check the region and the account".to_owned()
        }
        StoreRemedy::OtherFile => format!("{hint} with --store sqlite:PATH"),
        StoreRemedy::Token => format!(
            "{hint}; leasehold token new creates a token, on the server's machine and in the server's own store"
        ),
        StoreRemedy::Feature(feature) => {
            format!("build it in with: cargo install --path crates/leasehold-cli --features {feature}")
        }
        _ => hint.to_owned(),
    }
}

/// Returns the hint of the library, continued by a command.
fn with_command(error: &Error, command: &str) -> String {
    format!("{}{command}", error.hint().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_remedy_of_a_store_has_a_command() {
        let hints = [
            (
                StoreRemedy::CreateTable,
                "create it with: leasehold store init; or check the region and the account",
            ),
            (StoreRemedy::OtherFile, "HINT with --store sqlite:PATH"),
            (
                StoreRemedy::Token,
                "HINT; leasehold token new creates a token, on the server's machine and in the server's own store",
            ),
            (
                StoreRemedy::Feature("redis"),
                "build it in with: cargo install --path crates/leasehold-cli --features redis",
            ),
        ];
        for (remedy, hint) in hints {
            assert_eq!(store_hint("HINT", remedy), hint);
        }
    }

    #[test]
    fn a_hint_continues_what_the_library_says() {
        let unknown = Error::UnknownTask("00000000-0000-0000-0000-000000000001".parse().unwrap());
        let text =
            "finished tasks are purged when their retention is over; list tasks with: leasehold tasks list";
        assert_eq!(hint(&unknown).unwrap(), text);
    }

    #[test]
    fn commands_are_given_the_store_and_other_words_are_left_alone() {
        let prefix = "leasehold --store sqlite:x.db".to_owned();
        let program = Program { prefix, is_remote: false, is_command: crate::cli::is_command };
        let replaced = |text: &str| replaced(text, &program);
        let same = |text: &str| assert_eq!(replaced(text), text);
        assert_eq!(
            replaced("wait, or see why with: leasehold locks why a"),
            "wait, or see why with: leasehold --store sqlite:x.db locks why a"
        );
        assert_eq!(replaced("leasehold doctor; leasehold sweep").matches("--store").count(), 2);
        same("leasehold: listening");
        same("a leasehold server is running there");
        same("see it with: leasehold --store sqlite:y.db locks list");
        same("/opt/leasehold locks");
        same("");
    }

    #[test]
    fn a_command_that_makes_a_token_is_not_given_the_url_of_the_server() {
        let prefix = "leasehold --store http://127.0.0.1:7420".to_owned();
        let program = Program { prefix, is_remote: true, is_command: crate::cli::is_command };
        let hint = "leasehold token new --name ci; see leasehold doctor";
        let expected = "leasehold token new --name ci; see leasehold --store http://127.0.0.1:7420 doctor";
        assert_eq!(replaced(hint, &program), expected);
    }
}
