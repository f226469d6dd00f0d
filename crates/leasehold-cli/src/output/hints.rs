//! Hints for errors of the library: the command that shows more, or what to do instead.

use leasehold::Error;
use leasehold::model::LockName;

use super::text::shell_word;

/// Returns the hint for an error.
pub(super) fn hint(error: &Error) -> Option<String> {
    Some(match error {
        Error::Conflict { lock, conflict, .. } if conflict.full => {
            format!("see who waits with: leasehold locks status {}", argument(lock))
        }
        Error::Conflict { lock, .. } => {
            format!("wait for it with --wait 10m, or see why with: leasehold locks why {}", argument(lock))
        }
        Error::NotHeld { lock, .. } | Error::Lost { lock, .. } => {
            format!("see what happened with: leasehold history {}", argument(lock))
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
            format!("see who has it with: leasehold locks why {}", argument(&workflow.lock()))
        }
        Error::ExecutionKeyReused { execution, .. } => {
            with_command(error, &format!(", or see it with: leasehold executions show {execution}"))
        }
        Error::ExecutionFinished { execution, .. } => {
            format!("see it with: leasehold executions show {execution}")
        }
        _ => return error.hint().map(str::to_owned),
    })
}

/// Returns the hint of the library, continued by a command.
fn with_command(error: &Error, command: &str) -> String {
    format!("{}{command}", error.hint().unwrap_or_default())
}

/// Returns the name quoted for a shell, and protected from being parsed as an option.
fn argument(lock: &LockName) -> String {
    match lock.as_str() {
        name if name.starts_with('-') => format!("-- '{}'", name.replace('\'', "'\\''")),
        name => shell_word(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_for_the_shell() {
        let argument = |name| argument(&LockName::new(name).unwrap());
        assert_eq!(argument("a/b-c"), "a/b-c");
        assert_eq!(argument("it's $(me)"), "'it'\\''s $(me)'");
        assert_eq!(argument("-rf"), "-- '-rf'");
    }

    #[test]
    fn a_hint_continues_what_the_library_says() {
        let unknown = Error::UnknownTask("00000000-0000-0000-0000-000000000001".parse().unwrap());
        let text =
            "finished tasks are purged when their retention is over; list tasks with: leasehold tasks list";
        assert_eq!(hint(&unknown).unwrap(), text);
    }
}
