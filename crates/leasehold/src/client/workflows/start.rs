//! Starting an execution. The engine decides atomically whether the key is new and whether the
//! limit of the lock's queue allows the execution; the steps before that only clear stale locks and
//! improve the answer.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::execution::Execution;
use crate::client::context::Inner;
use crate::client::locks::clear_stale;
use crate::error::{Error, Result};
use crate::model::{
    Enqueued, ExecutionId, ExecutionInput, ExecutionSpec, Holder, Metadata, NewTask, Payload, Priority,
    RetryPolicy, Reuse, Task, TaskId, TaskKey, TaskState, Timestamp, Ttl, WorkflowName,
};
use crate::store::backoff::ExponentialBackoff;
use crate::store::clock::new_id;

/// Behaviour if another execution of the workflow is running or about to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnLocked {
    /// Start no execution, and return [`Error::WorkflowLocked`].
    #[default]
    Reject,
    /// Queue the execution, first come first served, if at most this many executions wait then,
    /// including this one.
    Queue(u32),
    /// Start no execution, and return [`StartResult::Skipped`], which is no error.
    Skip,
}

/// Result of starting an execution.
#[derive(Debug, Clone)]
#[must_use = "the execution may not have been started"]
pub enum StartResult {
    /// The execution runs, or is next to run.
    Started(Execution),
    /// The execution is queued.
    Queued(Execution),
    /// An earlier start with this key has started this execution. No new execution was started.
    Duplicate(Execution),
    /// Another execution or holder conflicts, and the caller chose [`OnLocked::Skip`]. No execution
    /// was started, and the key remains unused.
    Skipped {
        /// Conflicting execution, if the conflict is with an execution.
        execution: Option<ExecutionId>,
        /// Reason, as text for end users.
        reason: String,
    },
}

impl StartResult {
    /// Returns the execution that exists for this start.
    pub const fn execution(&self) -> Option<&Execution> {
        match self {
            Self::Started(execution) | Self::Queued(execution) | Self::Duplicate(execution) => {
                Some(execution)
            }
            Self::Skipped { .. } => None,
        }
    }
}

/// Builder that starts executions of a workflow. Invalid arguments are reported by
/// [`start`](Self::start).
#[derive(Clone)]
#[must_use = "nothing is started until start() is awaited"]
pub struct StartBuilder {
    inner: Arc<Inner>,
    workflow: Result<WorkflowName>,
    key: Option<TaskKey>,
    on_locked: OnLocked,
    reuse: Reuse,
    priority: Priority,
    max_runtime: Option<Ttl>,
    runner_ttl: Option<Ttl>,
    metadata: Metadata,
}

impl StartBuilder {
    pub(in crate::client) fn new<N: TryInto<WorkflowName, Error: Into<Error>>>(
        inner: Arc<Inner>,
        workflow: N,
    ) -> Self {
        let mut metadata = Metadata::default();
        // Cannot fail: the name of a holder is short enough for an entry.
        let _ = metadata.set(ExecutionSpec::STARTED_BY, inner.holder.as_str());
        Self {
            inner,
            workflow: workflow.try_into().map_err(Into::into),
            key: None,
            on_locked: OnLocked::default(),
            reuse: Reuse::Failed,
            priority: Priority::default(),
            max_runtime: None,
            runner_ttl: None,
            metadata,
        }
    }

    /// Sets the name of the caller that starts the execution; host name and process id of this
    /// process by default.
    pub fn started_by(self, caller: &Holder) -> Self {
        self.metadata(ExecutionSpec::STARTED_BY, caller.as_str())
    }

    /// Adds an entry to the metadata of the start, such as the event that caused it. It is stored with the
    /// execution, and is not part of the input.
    pub fn metadata(self, key: &str, value: &str) -> Self {
        let mut metadata = self.metadata.clone();
        self.with(metadata.set(key, value).map(|()| metadata), |start, metadata| start.metadata = metadata)
    }

    /// Sets the idempotency key of the start, such as the id of an event: each key starts one
    /// execution.
    pub fn key<K: TryInto<TaskKey, Error: Into<Error>>>(self, key: K) -> Self {
        self.with(key.try_into(), |start, key| start.key = Some(key))
    }

    /// Sets the behaviour if another execution conflicts; [`OnLocked::Reject`] by default.
    pub fn on_locked(mut self, on_locked: OnLocked) -> Self {
        self.on_locked = on_locked;
        self
    }

    /// Sets when the key of an earlier execution may be used again; by default when that execution
    /// has failed.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// Sets the priority among the queued executions: each step counts as having been started 30 s
    /// earlier.
    pub fn priority(self, weight: i32) -> Self {
        self.with(Priority::new(weight), |start, priority| start.priority = priority)
    }

    /// Sets the maximum run time. An execution that reaches it is stopped, and ends as aborted.
    pub fn max_runtime(self, max_runtime: Duration) -> Self {
        self.with(Ttl::new(max_runtime), |start, max_runtime| start.max_runtime = Some(max_runtime))
    }

    /// Declares that the caller runs the execution itself, and repeatedly calls
    /// [`Workflows::renew_runner`](crate::Workflows::renew_runner) while it waits. Without such a call for `ttl`,
    /// the caller is considered dead, and an execution that has not begun by then fails. The failed
    /// execution blocks no other execution, and its key can be used again.
    pub fn runner_ttl(self, ttl: Duration) -> Self {
        self.with(Ttl::new(ttl), |start, ttl| start.runner_ttl = Some(ttl))
    }

    fn with<T, E: Into<Error>>(mut self, value: Result<T, E>, set: impl FnOnce(&mut Self, T)) -> Self {
        match value {
            Ok(value) => set(&mut self, value),
            Err(error) if self.workflow.is_ok() => self.workflow = Err(error.into()),
            Err(_) => {}
        }
        self
    }

    /// Starts an execution with this input.
    pub async fn start<T: Serialize + ?Sized>(self, input: &T) -> Result<StartResult> {
        let input = ExecutionInput::of(input)?;
        self.start_with(input).await
    }

    /// Starts an execution with these bytes unchanged, such as the body of a request. The key
    /// stands for exactly these bytes.
    pub async fn start_raw(self, input: &[u8]) -> Result<StartResult> {
        let input = ExecutionInput::raw(input)?;
        self.start_with(input).await
    }

    /// Starts an execution with a prepared input.
    pub async fn start_with(self, input: ExecutionInput) -> Result<StartResult> {
        let workflow = self.workflow.clone()?;
        let tasks = self.inner.tasks()?;
        let queue = workflow.queue();
        let now = tasks.now().await?;
        let mut earlier = None;
        if let Some(key) = &self.key {
            earlier = tasks.get_by_key(&queue, key).await?;
            // The lease of the earlier execution may have expired without a process having noticed
            // it yet.
            if earlier.as_ref().is_some_and(|earlier| is_over(earlier, now)) {
                tasks.recover(RECOVER_BATCH).await?;
                earlier = tasks.get_by_key(&queue, key).await?;
            }
        }
        let mut spec = ExecutionSpec {
            max_runtime: self.max_runtime,
            key: self.key.clone(),
            metadata: self.metadata.clone(),
            ..ExecutionSpec::new(input)
        };
        if let Some(earlier) = earlier {
            if !self.reuse.allows(earlier.state) {
                if earlier.fingerprint != spec.input.fingerprint() {
                    return Err(self.key_reused(workflow, earlier.id));
                }
                return Ok(StartResult::Duplicate(Execution::of(earlier)));
            }
            spec.retry_of = Some(earlier.id.into());
            spec.attempt = ExecutionSpec::of(&earlier).attempt.saturating_add(1);
        }
        let lock = workflow.lock();
        let check = clear_stale(&self.inner, &lock).await?;
        if let Some(other_holder) =
            check.other_holder.filter(|_| !matches!(self.on_locked, OnLocked::Queue(_)))
        {
            let reason = format!("Its lock is held by {other_holder}, which is not an execution");
            return self.locked(workflow, None, false, reason);
        }
        let new = NewTask {
            key: self.key.clone(),
            reuse: self.reuse,
            priority: self.priority,
            lock: Some(lock),
            // A retry is a new execution.
            retries: RetryPolicy { attempts: 1, ..RetryPolicy::default() },
            lock_queue_limit: Some(match self.on_locked {
                OnLocked::Reject | OnLocked::Skip => 0,
                OnLocked::Queue(limit) => limit,
            }),
            fingerprint: Some(spec.input.fingerprint()),
            runner_ttl: self.runner_ttl,
            ..NewTask::new(TaskId::from_uuid(new_id()), queue, Payload::of(&spec)?)
        };
        self.add(workflow, new, now).await
    }

    /// Adds the task: the atomic step that decides the start.
    async fn add(self, workflow: WorkflowName, new: NewTask, checked_at: Timestamp) -> Result<StartResult> {
        let tasks = self.inner.tasks()?;
        let (mut recovered, mut unknown_heads) = (false, 0);
        loop {
            let enqueued = tasks.enqueue(std::slice::from_ref(&new)).await?;
            let enqueued = enqueued.first().copied().unwrap_or(Enqueued::Added(new.id));
            if let Enqueued::KeyReused(id) = enqueued {
                return Err(self.key_reused(workflow, id));
            }
            let id = enqueued.id();
            let task = tasks.get(id).await?;
            match (enqueued, task) {
                (Enqueued::LockQueueFull(_), Some(head)) => {
                    // The lease of the head may have expired, or a queued execution may have lost
                    // its runner, without a process having noticed it yet.
                    let may_be_over = matches!(self.on_locked, OnLocked::Queue(_));
                    if !recovered && (may_be_over || is_over(&head, tasks.now().await?)) {
                        recovered = true;
                        tasks.recover(RECOVER_BATCH).await?;
                        continue;
                    }
                    let raced = head.ready_at > checked_at;
                    let reason = self.conflict_reason(&head, raced);
                    return self.locked(workflow, Some(head.id.into()), raced, reason);
                }
                // The conflicting execution has finished and was purged in the meantime.
                (Enqueued::LockQueueFull(_), None) if unknown_heads < MAX_UNKNOWN_HEADS => {
                    tokio::time::sleep(UNKNOWN_HEAD_BACKOFF.delay(unknown_heads)).await;
                    unknown_heads += 1;
                }
                (Enqueued::LockQueueFull(_), None) => {
                    let execution = ExecutionId::from(id);
                    let reason = format!("Its lock belongs to {execution}, which the store does not have");
                    return self.locked(workflow, Some(execution), false, reason);
                }
                (_, None) => return Err(Error::UnknownExecution(id.into())),
                (Enqueued::Duplicate(_), Some(task)) => {
                    return Ok(StartResult::Duplicate(Execution::of(task)));
                }
                (_, Some(task)) => {
                    let waits = task.state == TaskState::Blocked;
                    let execution = Execution::of(task);
                    return Ok(if waits {
                        StartResult::Queued(execution)
                    } else {
                        StartResult::Started(execution)
                    });
                }
            }
        }
    }

    /// Returns the reason of a conflict with the execution that runs or is next to run.
    fn conflict_reason(&self, head: &Task, raced: bool) -> String {
        let execution = ExecutionId::from(head.id);
        match self.on_locked {
            OnLocked::Queue(limit) => {
                format!("{limit} others wait already. Currently executing: {execution}")
            }
            _ if raced => format!("Another concurrent request acquired the execution lock: {execution}"),
            _ => format!("Only one execution can run at a time. Currently executing: {execution}"),
        }
    }

    fn locked(
        &self,
        workflow: WorkflowName,
        execution: Option<ExecutionId>,
        raced: bool,
        reason: String,
    ) -> Result<StartResult> {
        match self.on_locked {
            OnLocked::Skip => Ok(StartResult::Skipped { execution, reason }),
            _ => Err(Error::WorkflowLocked { workflow, execution, raced, reason }),
        }
    }

    fn key_reused(self, workflow: WorkflowName, owner: TaskId) -> Error {
        let execution = ExecutionId::from(owner);
        match self.key {
            Some(key) => Error::ExecutionKeyReused { workflow, key, execution },
            None => Error::UnknownExecution(execution),
        }
    }
}

/// Returns whether recovery would end the task.
fn is_over(task: &Task, now: Timestamp) -> bool {
    task.has_expired(now) || task.is_abandoned(now)
}

/// Maximum number of expired leases that are ended before a start is tried again.
const RECOVER_BATCH: u32 = 1000;
/// Maximum number of retries of a start that conflicts with an execution that does not exist, and the
/// delays before them.
const MAX_UNKNOWN_HEADS: u32 = 10;
const UNKNOWN_HEAD_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(5), Duration::from_millis(200));
