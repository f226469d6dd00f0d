//! The one error of the library: what happened, whether trying again helps, and what to do next.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    Conflict, ExecutionId, Invalid, LockName, NotHeld, QueueName, ScheduleName, StaleToken, TaskId, TaskKey,
    TaskState, WorkflowName, format_duration,
};

/// What every fallible call of this library returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. The cause, where there is one below, is its `source`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name, a duration or another value that cannot be.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// Somebody else has the lock, and the caller's patience is over.
    #[error("Execution blocked: {}{}", conflict.describe(lock), after_waiting(*.waited))]
    Conflict {
        /// The lock that could not be had.
        lock: LockName,
        /// Who is in the way.
        conflict: Box<Conflict>,
        /// How long the caller waited.
        waited: Duration,
    },

    /// No live lease with that id and token: it ended, was taken, or never was.
    #[error("lock '{lock}' is not held by that lease{}", now_held(.now))]
    NotHeld {
        /// The lock.
        lock: LockName,
        /// What the store knows instead.
        now: Box<NotHeld>,
    },

    /// A guarded piece of work was stopped because its lease was lost.
    #[error("the lease on lock '{lock}' was lost: {why}")]
    Lost {
        /// The lock.
        lock: LockName,
        /// How it came to that.
        why: String,
    },

    /// A token that is not the newest.
    #[error(transparent)]
    StaleToken(#[from] StaleToken),

    /// There is no such task, or no longer.
    #[error("there is no task {0}")]
    UnknownTask(TaskId),

    /// There is no such queue: no task was ever added to it.
    #[error("there is no queue '{queue}'{}", known_queues(known))]
    UnknownQueue {
        /// The queue that was named.
        queue: QueueName,
        /// Those that there are.
        known: Vec<QueueName>,
    },

    /// There is no such schedule.
    #[error("there is no schedule '{0}'")]
    UnknownSchedule(ScheduleName),

    /// The task is not as the caller saw it: somebody has changed it since.
    #[error("task {task} has changed: you saw version {expected}, and it is at {current}")]
    VersionConflict {
        /// The task.
        task: TaskId,
        /// The version that the caller saw.
        expected: u64,
        /// The version that it has.
        current: u64,
    },

    /// The key is taken by a task that is about something else.
    #[error("key '{key}' of queue '{queue}' is taken by task {task}, which was added with another payload")]
    KeyReused {
        /// The queue.
        queue: QueueName,
        /// The key.
        key: TaskKey,
        /// The task that has it.
        task: TaskId,
    },

    /// The task stands where this makes no sense.
    #[error("task {task} is {state}; {what} is not possible now")]
    TaskState {
        /// The task.
        task: TaskId,
        /// Where it stands.
        state: TaskState,
        /// What was wanted.
        what: &'static str,
    },

    /// The worker does not have the task any more: its lease ran out, and somebody else may have it.
    #[error("task {task} is not leased by that token")]
    TaskLost {
        /// The task.
        task: TaskId,
    },

    /// More tasks have or await the lock than the new one wanted to be with. It was not added.
    #[error("there is no room behind lock '{lock}': task {task} has it")]
    NoRoom {
        /// The lock.
        lock: LockName,
        /// The task that runs with it, or is next to.
        task: TaskId,
    },

    /// Another execution of the workflow runs or is about to, or somebody else has its lock. Nothing was started, and the key
    /// is as free as before.
    #[error("workflow '{workflow}' cannot start now: {reason}")]
    WorkflowLocked {
        /// The workflow.
        workflow: WorkflowName,
        /// The execution that is in the way, if it is one.
        execution: Option<ExecutionId>,
        /// Whether it came at the very same time: a look before had found the workflow free.
        raced: bool,
        /// In words.
        reason: String,
    },

    /// The key is taken by an execution that was started with another input.
    #[error(
        "key '{key}' of workflow '{workflow}' is taken by {execution}, which was started with another input"
    )]
    ExecutionKeyReused {
        /// The workflow.
        workflow: WorkflowName,
        /// The key.
        key: TaskKey,
        /// The execution that has it.
        execution: ExecutionId,
    },

    /// There is no such execution, or no longer.
    #[error("there is no execution {0}")]
    UnknownExecution(ExecutionId),

    /// The execution is over: it cannot be stopped, and nothing it says counts any more.
    #[error("execution {execution} is over: it {}", ended(*state))]
    ExecutionFinished {
        /// The execution.
        execution: ExecutionId,
        /// How it ended.
        state: TaskState,
    },

    /// The store did not answer, or could not do what was asked.
    #[error("{message}")]
    Store {
        /// What kind of trouble.
        trouble: Trouble,
        /// What happened, with the store's address but no secret.
        message: String,
        /// What to do next.
        hint: String,
        /// What the engine said.
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
}

/// What kind of trouble a store is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// It cannot be reached or is too busy, its disk is full: later it may work.
    Unavailable,
    /// It does not let us.
    NotPermitted,
    /// The address or the settings are wrong, or it is not one of ours: it will not work until somebody changes that.
    Misconfigured,
    /// It has no such thing, such as tasks: another kind of store is needed.
    NotSupported,
    /// It contains what it must not contain, or answered what it must not answer.
    Broken,
}

/// So that a name that has been checked already can be given where one to be checked is taken.
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl Error {
    pub(crate) fn store(trouble: Trouble, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Store { trouble, message: message.into(), hint: hint.into(), source: None }
    }

    pub(crate) fn because(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        if let Self::Store { source, .. } = &mut self {
            *source = Some(Arc::new(cause));
        }
        self
    }

    /// A stable name for programs; `docs/errors.md` has a paragraph on each.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "INVALID",
            Self::Conflict { .. } => "LOCK_CONFLICT",
            Self::NotHeld { .. } => "LOCK_NOT_HELD",
            Self::Lost { .. } | Self::TaskLost { .. } => "LEASE_LOST",
            Self::StaleToken(_) => "STALE_TOKEN",
            Self::UnknownTask(_) => "UNKNOWN_TASK",
            Self::UnknownQueue { .. } => "UNKNOWN_QUEUE",
            Self::UnknownSchedule(_) => "UNKNOWN_SCHEDULE",
            Self::VersionConflict { .. } => "VERSION_CONFLICT",
            Self::KeyReused { .. } => "KEY_REUSED",
            Self::TaskState { .. } => "TASK_STATE",
            Self::NoRoom { .. } => "NO_ROOM",
            Self::WorkflowLocked { raced: false, .. } => "WORKFLOW_LOCKED",
            Self::WorkflowLocked { raced: true, .. } => "LOCK_ACQUISITION_FAILED",
            Self::ExecutionKeyReused { .. } => "IDEMPOTENCY_KEY_REUSED",
            Self::UnknownExecution(_) => "UNKNOWN_EXECUTION",
            Self::ExecutionFinished { .. } => "EXECUTION_FINISHED",
            Self::Store { trouble, .. } => match trouble {
                Trouble::Unavailable => "STORE_UNAVAILABLE",
                Trouble::NotPermitted => "STORE_NOT_PERMITTED",
                Trouble::Misconfigured => "STORE_MISCONFIGURED",
                Trouble::Broken => "STORE_BROKEN",
                Trouble::NotSupported => "NOT_SUPPORTED",
            },
        }
    }

    /// Whether the same call may succeed later without anybody changing anything. An acquire that is tried again
    /// with the same lease id cannot take the lock twice.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Conflict { .. }
                | Self::NoRoom { .. }
                | Self::WorkflowLocked { .. }
                | Self::Store { trouble: Trouble::Unavailable, .. }
        )
    }

    /// Whether the store refused the call because of who the caller is.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Store { trouble: Trouble::NotPermitted, .. })
    }

    /// What to do next, in words for a person.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Conflict { lock, conflict, .. } if conflict.full => {
                Some(format!("see who waits with: leasehold locks status {}", quoted(lock)))
            }
            Self::Conflict { lock, .. } => Some(format!(
                "wait for it with --wait 10m, or see why with: leasehold locks why {}",
                quoted(lock)
            )),
            Self::NotHeld { lock, .. } | Self::Lost { lock, .. } => {
                Some(format!("see what happened with: leasehold history {}", quoted(lock)))
            }
            Self::StaleToken(_) => Some(
                "stop: the lease of this token has ended, and another holder may have the lock".to_owned(),
            ),
            Self::UnknownTask(_) => Some(
                "finished tasks are forgotten after a while; see what there is with: leasehold tasks list"
                    .to_owned(),
            ),
            Self::UnknownQueue { .. } => Some("see the queues with: leasehold queues list".to_owned()),
            Self::UnknownSchedule(_) => Some("see them with: leasehold schedules list".to_owned()),
            Self::VersionConflict { task, .. } => {
                Some(format!("read it again with: leasehold tasks show {task}"))
            }
            Self::KeyReused { task, .. } => {
                Some(format!("use another key, or see that task with: leasehold tasks show {task}"))
            }
            Self::TaskLost { .. } => Some("stop working on it: somebody else may have it".to_owned()),
            Self::TaskState { task, .. } | Self::NoRoom { task, .. } => Some(format!("see it with: leasehold tasks show {task}")),
            Self::WorkflowLocked { execution: Some(execution), .. } => {
                Some(format!("try again later, or see it with: leasehold executions show {execution}"))
            }
            Self::WorkflowLocked { workflow, .. } => {
                Some(format!("see who has it with: leasehold locks why {}", quoted(&workflow.lock())))
            }
            Self::ExecutionKeyReused { execution, .. } => {
                Some(format!("use another key, or see it with: leasehold executions show {execution}"))
            }
            Self::UnknownExecution(_) => Some(
                "finished executions are forgotten after a while; see what there is with: leasehold executions list"
                    .to_owned(),
            ),
            Self::ExecutionFinished { execution, .. } => {
                Some(format!("see it with: leasehold executions show {execution}"))
            }
            Self::Store { hint, .. } if !hint.is_empty() => Some(hint.clone()),
            Self::Invalid(_) | Self::Store { .. } => None,
        }
    }
}

/// How a task or an execution ended, as the end of a sentence about it.
fn ended(state: TaskState) -> String {
    match state {
        TaskState::Aborted => "was aborted".to_owned(),
        state => state.to_string(),
    }
}

/// A name as a shell and then the command line would want it.
fn quoted(lock: &LockName) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match lock.as_str() {
        name if name.starts_with('-') => format!("-- '{}'", name.replace('\'', "'\\''")),
        name if name.chars().all(plain) => name.to_owned(),
        name => format!("'{}'", name.replace('\'', "'\\''")),
    }
}

fn known_queues(known: &[QueueName]) -> String {
    match known {
        [] => "; there is none yet".to_owned(),
        known => {
            let names: Vec<_> = known.iter().take(5).map(|name| format!("'{name}'")).collect();
            let more = if known.len() > 5 { " and more" } else { "" };
            format!("; there is {}{more}", names.join(", "))
        }
    }
}

fn after_waiting(waited: Duration) -> String {
    if waited < Duration::from_millis(1) {
        String::new()
    } else {
        format!(" (waited {})", format_duration(waited))
    }
}

fn now_held(now: &NotHeld) -> String {
    match now.holders.first() {
        Some(held) => format!("; {} has it until {}", held.holder, held.until),
        None => "; nobody has it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{HeldBy, Holder, Mode, Timestamp, Token};

    #[test]
    fn a_conflict_says_who_until_when_and_what_to_do() {
        let held = HeldBy {
            holder: Holder::new("execution-abc123").unwrap(),
            lease: None,
            mode: Mode::Exclusive,
            token: Token::default(),
            since: Timestamp::from_micros(0),
            until: Timestamp::from_micros(1_730_817_135_000_000),
        };
        let now = Timestamp::from_micros(1_730_815_335_900_000);
        let conflict = Conflict { holders: vec![held], waiters: 0, full: false, now: Some(now) };
        let error = |conflict: Conflict| Error::Conflict {
            lock: LockName::new("terraform-prod").unwrap(),
            conflict: Box::new(conflict),
            waited: Duration::ZERO,
        };
        let until =
            "Execution blocked: lock 'terraform-prod' held by execution-abc123 until 2024-11-05T14:32:15Z";
        assert_eq!(error(Conflict { now: None, ..conflict.clone() }).to_string(), until);
        let error = error(conflict);
        assert_eq!(error.to_string(), format!("{until} (in 29m59s)"));
        assert!(error.hint().unwrap().contains("leasehold locks why terraform-prod"));
        assert!(error.is_retryable());
    }

    #[test]
    fn a_name_is_quoted_for_the_shell() {
        let quoted = |name| super::quoted(&LockName::new(name).unwrap());
        assert_eq!(quoted("a/b-c"), "a/b-c");
        assert_eq!(quoted("it's $(me)"), "'it'\\''s $(me)'");
        assert_eq!(quoted("-rf"), "-- '-rf'");
    }
}
