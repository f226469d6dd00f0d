//! Error type of the library: what happened, whether a retry is useful, and what to do next.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    Conflict, Deadlock, ExecutionId, LockName, NotHeld, QueueName, ScheduleName, StaleToken, TaskId, TaskKey,
    TaskState, ValidationError, WorkflowName, format_duration,
};

/// Result of every fallible call of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a call. The underlying cause, if there is one, is its `source`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name, a duration or another value is invalid.
    #[error(transparent)]
    Invalid(#[from] ValidationError),

    /// Another holder has the lock, and the caller's waiting time is over.
    #[error("Execution blocked: {}{}", conflict.describe(lock), after_waiting(*.waited))]
    Conflict {
        /// Lock that could not be acquired.
        lock: LockName,
        /// Holders and waiters that conflict with the request.
        conflict: Box<Conflict>,
        /// Time that the caller waited.
        waited: Duration,
    },

    /// The request would wait for itself: it closes a ring of requests that wait for each other. It was
    /// withdrawn.
    #[error("waiting for lock '{lock}' would not end: {deadlock}")]
    Deadlock {
        /// Lock of the request.
        lock: LockName,
        /// Ring that contains the request.
        deadlock: Box<Deadlock>,
    },

    /// No live lease has that id and token: the lease has ended, was taken over, or never existed.
    #[error("lock '{lock}' is not held by that lease{}", now_held(.now))]
    NotHeld {
        /// Lock of the call.
        lock: LockName,
        /// Current holders of the lock according to the store.
        now: Box<NotHeld>,
    },

    /// Guarded work was stopped because its lease was lost.
    #[error("the lease on lock '{lock}' was lost: {reason}")]
    Lost {
        /// Lock whose lease was lost.
        lock: LockName,
        /// Reason of the loss.
        reason: String,
    },

    /// The token is not the newest one.
    #[error(transparent)]
    StaleToken(#[from] StaleToken),

    /// The task does not exist, or no longer exists.
    #[error("there is no task {0}")]
    UnknownTask(TaskId),

    /// The queue does not exist: no task was ever added to it.
    #[error("there is no queue '{queue}'{}", known_queues(known))]
    UnknownQueue {
        /// Queue that the caller named.
        queue: QueueName,
        /// Queues that exist.
        known: Vec<QueueName>,
    },

    /// The schedule does not exist.
    #[error("there is no schedule '{0}'")]
    UnknownSchedule(ScheduleName),

    /// The task was changed after the caller read it.
    #[error("task {task} has changed: you saw version {expected}, and it is at {current}")]
    VersionConflict {
        /// Task of the call.
        task: TaskId,
        /// Version that the caller expected.
        expected: u64,
        /// Current version of the task.
        current: u64,
    },

    /// The key belongs to a task that was added with another payload.
    #[error("key '{key}' of queue '{queue}' is taken by task {task}, which was added with another payload")]
    KeyReused {
        /// Queue of the key.
        queue: QueueName,
        /// Key that was reused.
        key: TaskKey,
        /// Task that has the key.
        task: TaskId,
    },

    /// The operation is not possible in the current state of the task.
    #[error("task {task} is {state}; {operation} is not possible now")]
    TaskState {
        /// Task of the call.
        task: TaskId,
        /// Current state of the task.
        state: TaskState,
        /// Description of the operation that was requested.
        operation: &'static str,
    },

    /// The worker no longer holds the task: its lease expired, and another worker may hold the task
    /// now.
    #[error("task {task} is not leased by that token")]
    TaskLost {
        /// Task whose lease was lost.
        task: TaskId,
    },

    /// More tasks of the queue hold or wait for the lock than the limit of the new task allows. The
    /// new task was not added.
    #[error("the queue of lock '{lock}' is full: task {task} holds the lock or is next")]
    LockQueueFull {
        /// Lock of the new task.
        lock: LockName,
        /// Task that holds the lock, or is next to acquire it.
        task: TaskId,
    },

    /// Another execution of the workflow is running or about to run, or another holder has the
    /// workflow's lock. No execution was started, and the key remains unused.
    #[error("workflow '{workflow}' cannot start now: {reason}")]
    WorkflowLocked {
        /// Workflow that was to be started.
        workflow: WorkflowName,
        /// Conflicting execution, if the conflict is with an execution.
        execution: Option<ExecutionId>,
        /// Whether the conflicting start was concurrent: an earlier query had found the workflow
        /// free.
        raced: bool,
        /// Reason, as text for end users.
        reason: String,
    },

    /// The key belongs to an execution that was started with another input.
    #[error(
        "key '{key}' of workflow '{workflow}' is taken by {execution}, which was started with another input"
    )]
    ExecutionKeyReused {
        /// Workflow of the key.
        workflow: WorkflowName,
        /// Key that was reused.
        key: TaskKey,
        /// Execution that has the key.
        execution: ExecutionId,
    },

    /// The execution does not exist, or no longer exists.
    #[error("there is no execution {0}")]
    UnknownExecution(ExecutionId),

    /// The execution has finished: it cannot be stopped, and its reports are ignored.
    #[error("execution {execution} has already finished: it {}", ended(*state))]
    ExecutionFinished {
        /// Execution of the call.
        execution: ExecutionId,
        /// Final state of the execution.
        state: TaskState,
    },

    /// The store did not answer, or could not perform the operation.
    #[error("{message}")]
    #[non_exhaustive]
    Store {
        /// Kind of the store error.
        kind: StoreErrorKind,
        /// Description of the error, with the store's address but without secrets.
        message: String,
        /// Suggested next step.
        hint: String,
        /// What helps, for a program that can say how its user does it.
        remedy: Option<StoreRemedy>,
        /// Error of the engine.
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
}

/// Kind of a store error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store cannot be reached, is too busy, or its disk is full; a later call may succeed.
    Unavailable,
    /// The store denies the caller permission.
    NotPermitted,
    /// The address or the settings are wrong, or the store was not created by leasehold; calls fail
    /// until an operator changes that.
    Misconfigured,
    /// The store does not support the feature, for example tasks; another kind of store is needed.
    NotSupported,
    /// The store contains invalid data or gave an invalid answer.
    Broken,
}

/// What helps against a store error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreRemedy {
    /// The table does not exist, and [`init`](crate::store::init) creates it.
    CreateTable,
    /// Another file is needed.
    OtherFile,
    /// A token of the server is needed.
    Token,
    /// The engine needs this feature of the crate.
    Feature(&'static str),
}

/// Lets callers pass an already validated name where a value to be validated is accepted.
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl Error {
    /// Returns the error of a store: its kind, its description, and the suggested next step.
    pub fn store(kind: StoreErrorKind, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Store { kind, message: message.into(), hint: hint.into(), remedy: None, source: None }
    }

    pub(crate) fn with_remedy(mut self, known: StoreRemedy) -> Self {
        if let Self::Store { remedy, .. } = &mut self {
            *remedy = Some(known);
        }
        self
    }

    pub(crate) fn because(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        if let Self::Store { source, .. } = &mut self {
            *source = Some(Arc::new(cause));
        }
        self
    }

    /// Returns a stable code for programs; `docs/errors.md` has a paragraph on each code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "INVALID",
            Self::Conflict { .. } => "LOCK_CONFLICT",
            Self::Deadlock { .. } => "DEADLOCK",
            Self::NotHeld { .. } => "LOCK_NOT_HELD",
            Self::Lost { .. } | Self::TaskLost { .. } => "LEASE_LOST",
            Self::StaleToken(_) => "STALE_TOKEN",
            Self::UnknownTask(_) => "UNKNOWN_TASK",
            Self::UnknownQueue { .. } => "UNKNOWN_QUEUE",
            Self::UnknownSchedule(_) => "UNKNOWN_SCHEDULE",
            Self::VersionConflict { .. } => "VERSION_CONFLICT",
            Self::KeyReused { .. } => "KEY_REUSED",
            Self::TaskState { .. } => "TASK_STATE",
            Self::LockQueueFull { .. } => "LOCK_QUEUE_FULL",
            Self::WorkflowLocked { raced: false, .. } => "WORKFLOW_LOCKED",
            Self::WorkflowLocked { raced: true, .. } => "LOCK_ACQUISITION_FAILED",
            Self::ExecutionKeyReused { .. } => "IDEMPOTENCY_KEY_REUSED",
            Self::UnknownExecution(_) => "UNKNOWN_EXECUTION",
            Self::ExecutionFinished { .. } => "EXECUTION_FINISHED",
            Self::Store { kind, .. } => match kind {
                StoreErrorKind::Unavailable => "STORE_UNAVAILABLE",
                StoreErrorKind::NotPermitted => "STORE_NOT_PERMITTED",
                StoreErrorKind::Misconfigured => "STORE_MISCONFIGURED",
                StoreErrorKind::Broken => "STORE_BROKEN",
                StoreErrorKind::NotSupported => "NOT_SUPPORTED",
            },
        }
    }

    /// Returns whether the same call may succeed later without any change by an operator. Retrying
    /// an acquire with the same lease id cannot take the lock twice.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Conflict { .. }
                | Self::LockQueueFull { .. }
                | Self::WorkflowLocked { .. }
                | Self::Store { kind: StoreErrorKind::Unavailable, .. }
        )
    }

    /// Returns whether the store refused the call because of the caller's identity.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Store { kind: StoreErrorKind::NotPermitted, .. })
    }

    /// Returns the suggested next step, as text for end users. Most errors have none: their fields
    /// state what a program can do.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::StaleToken(_) => {
                Some("stop: the lease of this token has ended, and another holder may have the lock")
            }
            Self::Deadlock { .. } => Some(
                "release the locks that you hold, then request all of them together: they are taken in one order",
            ),
            Self::TaskLost { .. } => Some("stop working on it: another worker may have it"),
            Self::UnknownTask(_) => Some("finished tasks are purged when their retention is over"),
            Self::UnknownExecution(_) => Some("finished executions are purged when their retention is over"),
            Self::KeyReused { .. } | Self::ExecutionKeyReused { .. } => Some("use another key"),
            Self::Store { hint, .. } if !hint.is_empty() => Some(hint),
            _ => None,
        }
    }

    /// Returns what helps against an error of a store, if that is known.
    pub fn remedy(&self) -> Option<StoreRemedy> {
        match self {
            Self::Store { remedy, .. } => *remedy,
            _ => None,
        }
    }
}

/// Returns the final state of a task or an execution, as the end of a sentence about it.
fn ended(state: TaskState) -> String {
    match state {
        TaskState::Aborted => "was aborted".to_owned(),
        state => state.to_string(),
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
        None => "; no holder has it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{HeldBy, Holder, Mode, Timestamp, Token};

    #[test]
    fn a_conflict_names_the_holder_and_its_expiry() {
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
        assert!(error.is_retryable());
    }
}
