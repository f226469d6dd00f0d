//! Starting an execution. The engine decides in one step whether its key is new and its lock has room; what is done before
//! that only clears away what is stale, and makes the answer a better one.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::execution::Execution;
use super::stale::clear_stale;
use crate::client::leasehold::Inner;
use crate::error::{Error, Result};
use crate::model::{
    Brief, Enqueued, ExecutionId, Holder, Input, Metadata, NewTask, Payload, Priority, Retries, Reuse, Task,
    TaskId, TaskKey, TaskState, Timestamp, Ttl, WorkflowName,
};
use crate::store::clock::new_id;

/// What to do if another execution of the workflow runs or is about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnLocked {
    /// Start nothing: [`Error::WorkflowLocked`].
    #[default]
    Reject,
    /// Wait for its turn, first come first served, if no more than so many wait then.
    Queue(u32),
    /// Start nothing, and that is fine: [`Start::Skipped`].
    Skip,
}

/// What came of starting an execution.
#[derive(Debug, Clone)]
#[must_use = "it may not have been started"]
pub enum Start {
    /// It runs, or is next to run.
    Started(Execution),
    /// It waits for its turn.
    Queued(Execution),
    /// The key has started this one before. Nothing was started.
    Duplicate(Execution),
    /// Another one is in the way, as the caller thought it might. Nothing was started, and the key is as free as before.
    Skipped {
        /// The execution that is in the way, if it is one.
        execution: Option<ExecutionId>,
        /// In words.
        reason: String,
    },
}

impl Start {
    /// The execution that there is for this start.
    pub const fn execution(&self) -> Option<&Execution> {
        match self {
            Self::Started(execution) | Self::Queued(execution) | Self::Duplicate(execution) => {
                Some(execution)
            }
            Self::Skipped { .. } => None,
        }
    }
}

/// Starts executions of a workflow. What is wrong with a value is told by [`start`](Self::start).
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
    wanted: Option<Ttl>,
    facts: Metadata,
}

impl StartBuilder {
    pub(in crate::client) fn new<N>(inner: Arc<Inner>, workflow: N) -> Self
    where
        N: TryInto<WorkflowName>,
        N::Error: Into<Error>,
    {
        let mut facts = Metadata::default();
        // A holder's name is short enough for a fact.
        let _ = facts.set(Brief::STARTED_BY, inner.holder.as_str());
        Self {
            inner,
            workflow: workflow.try_into().map_err(Into::into),
            key: None,
            on_locked: OnLocked::default(),
            reuse: Reuse::Failed,
            priority: Priority::default(),
            max_runtime: None,
            wanted: None,
            facts,
        }
    }

    /// Names who starts it; host and process number of this process by default.
    pub fn started_by(self, who: &Holder) -> Self {
        self.fact(Brief::STARTED_BY, who.as_str())
    }

    /// Adds a fact about the start, such as the event behind it. It is kept with the execution, and is no part of the input.
    pub fn fact(self, key: &str, value: &str) -> Self {
        let mut facts = self.facts.clone();
        self.with(facts.set(key, value).map(|()| facts), |start, facts| start.facts = facts)
    }

    /// What makes it the same start when it comes again, such as the id of an event: one execution for each.
    pub fn key<K>(self, key: K) -> Self
    where
        K: TryInto<TaskKey>,
        K::Error: Into<Error>,
    {
        self.with(key.try_into(), |start, key| start.key = Some(key))
    }

    /// What to do if another execution is in the way; reject if not said.
    pub fn on_locked(mut self, on_locked: OnLocked) -> Self {
        self.on_locked = on_locked;
        self
    }

    /// When the key of an earlier execution may be used anew; when that has failed if not said.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// Weight among those that wait for their turn: one step counts as having come 30 s earlier.
    pub fn priority(self, weight: i32) -> Self {
        self.with(Priority::new(weight), |start, priority| start.priority = priority)
    }

    /// It is stopped when it has run for so long, and ends as aborted.
    pub fn max_runtime(self, longest: Duration) -> Self {
        self.with(Ttl::new(longest), |start, longest| start.max_runtime = Some(longest))
    }

    /// The caller runs the execution itself, and says with [`Workflows::want`](crate::Workflows::want) that it still waits for
    /// it: if nothing is said for so long, the caller is gone, and an execution that has not begun by then has failed. It stands
    /// in nobody's way, and its key can be used.
    pub fn wanted(self, ttl: Duration) -> Self {
        self.with(Ttl::new(ttl), |start, ttl| start.wanted = Some(ttl))
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
    pub async fn start<T: Serialize + ?Sized>(self, input: &T) -> Result<Start> {
        let input = Input::of(input)?;
        self.start_with(input).await
    }

    /// Starts an execution with these bytes as they came, such as the body of a request. The key stands for exactly them.
    pub async fn start_raw(self, input: &[u8]) -> Result<Start> {
        let input = Input::raw(input)?;
        self.start_with(input).await
    }

    /// Starts an execution.
    pub async fn start_with(self, input: Input) -> Result<Start> {
        let workflow = self.workflow.clone()?;
        let tasks = self.inner.tasks()?;
        let queue = workflow.queue();
        let now = tasks.now().await?;
        let mut earlier = None;
        if let Some(key) = &self.key {
            earlier = tasks.keyed(&queue, key).await?;
            // Nobody may have looked yet whether its lease has run out.
            if earlier.as_ref().is_some_and(|earlier| is_over(earlier, now)) {
                tasks.recover(RECOVER).await?;
                earlier = tasks.keyed(&queue, key).await?;
            }
        }
        let mut brief = Brief {
            max_runtime: self.max_runtime,
            key: self.key.clone(),
            facts: self.facts.clone(),
            ..Brief::new(input)
        };
        if let Some(earlier) = earlier {
            if !self.reuse.allows(earlier.state) {
                let prints = [brief.input.fingerprint(), brief.input.old_fingerprint()];
                if !prints.contains(&earlier.fingerprint) {
                    return Err(self.key_reused(workflow, earlier.id));
                }
                return Ok(Start::Duplicate(Execution::of(earlier)));
            }
            brief.retry_of = Some(earlier.id.into());
            brief.attempt = Brief::of(&earlier).attempt.saturating_add(1);
        }
        let lock = workflow.lock();
        let seen = clear_stale(&self.inner, &lock).await?;
        if let Some(stranger) = seen.stranger.filter(|_| !matches!(self.on_locked, OnLocked::Queue(_))) {
            return self.locked(workflow, None, false, held_by(&stranger));
        }
        let new = NewTask {
            key: self.key.clone(),
            reuse: self.reuse,
            priority: self.priority,
            lock: Some(lock),
            // Another try is another execution.
            retries: Retries { attempts: 1, ..Retries::default() },
            room: Some(match self.on_locked {
                OnLocked::Reject | OnLocked::Skip => 0,
                OnLocked::Queue(places) => places,
            }),
            fingerprint: Some(brief.input.fingerprint()),
            old_fingerprint: Some(brief.input.old_fingerprint()),
            wanted: self.wanted,
            ..NewTask::new(TaskId::from_uuid(new_id()), queue, Payload::of(&brief)?)
        };
        self.add(workflow, new, now).await
    }

    /// The one step that counts.
    async fn add(self, workflow: WorkflowName, new: NewTask, looked_at: Timestamp) -> Result<Start> {
        let tasks = self.inner.tasks()?;
        let mut recovered = false;
        loop {
            let enqueued = tasks.enqueue(std::slice::from_ref(&new)).await?;
            let enqueued = enqueued.first().copied().unwrap_or(Enqueued::Added(new.id));
            if let Enqueued::KeyReused(id) = enqueued {
                return Err(self.key_reused(workflow, id));
            }
            let id = enqueued.id();
            let task = tasks.get(id).await?;
            match (enqueued, task) {
                (Enqueued::NoRoom(_), Some(head)) => {
                    // Nobody may have looked yet whether its lease has run out, or whether one that waits has lost its runner.
                    let may_be_over = matches!(self.on_locked, OnLocked::Queue(_));
                    if !recovered && (may_be_over || is_over(&head, tasks.now().await?)) {
                        recovered = true;
                        tasks.recover(RECOVER).await?;
                        continue;
                    }
                    let raced = head.ready_at > looked_at;
                    let reason = self.in_the_way(&head, raced);
                    return self.locked(workflow, Some(head.id.into()), raced, reason);
                }
                // It was in the way a moment ago, and is forgotten already.
                (Enqueued::NoRoom(_), None) => {}
                (_, None) => return Err(Error::UnknownExecution(id.into())),
                (Enqueued::Duplicate(_), Some(task)) => return Ok(Start::Duplicate(Execution::of(task))),
                (_, Some(task)) => {
                    let waits = task.state == TaskState::Blocked;
                    let execution = Execution::of(task);
                    return Ok(if waits { Start::Queued(execution) } else { Start::Started(execution) });
                }
            }
        }
    }

    fn in_the_way(&self, head: &Task, raced: bool) -> String {
        let execution = ExecutionId::from(head.id);
        match self.on_locked {
            OnLocked::Queue(places) => {
                format!("{places} others wait already. Currently executing: {execution}")
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
    ) -> Result<Start> {
        match self.on_locked {
            OnLocked::Skip => Ok(Start::Skipped { execution, reason }),
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

/// Whether recovery would end it.
fn is_over(task: &Task, now: Timestamp) -> bool {
    task.has_expired(now) || task.is_abandoned(now)
}

/// So many leases that have run out are ended at most before a start is tried again.
const RECOVER: u32 = 1000;

fn held_by(stranger: &Holder) -> String {
    format!("Its lock is held by {stranger}, which is no execution")
}
