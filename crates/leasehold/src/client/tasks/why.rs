//! Explanation of a task: reads the state around it, and lets the model explain it.

use serde::Serialize;

use super::admin::Tasks;
use super::views::exact;
use crate::error::Result;
use crate::model::{Task, TaskId, TaskReason, TaskState, TaskSurroundings, Timestamp};
use crate::store::{ListTasks, TaskStore};

/// Explanation of a task at one point of the store's time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TaskExplanation {
    /// The task.
    pub task: Task,
    /// Store time of the explanation.
    pub now: Timestamp,
    /// Reasons why the task does not run now, the most important first; never empty.
    pub reasons: Vec<TaskReason>,
}

impl Tasks {
    /// Explains why a task does not run now. The task, its queue, the workers and its lock are read
    /// one after the other.
    pub async fn why(&self, id: TaskId) -> Result<TaskExplanation> {
        let (store, task) = (self.store()?, self.get(id).await?);
        if task.state.is_terminal() {
            let now = store.now().await?;
            let around = TaskSurroundings { now, queue: None, workers: None, lock: None, head: None };
            let reasons = task.why(&around);
            return Ok(TaskExplanation { task, now, reasons });
        }
        let queue = if_permitted(store.queue(&task.queue).await)?.flatten();
        let workers = if_permitted(store.workers().await)?;
        let lock = match &task.lock {
            Some(lock) => if_permitted(self.inner.locks().get(lock).await)?.flatten(),
            None => None,
        };
        let head = if task.state == TaskState::Blocked { head(store, &task).await? } else { None };
        let around = TaskSurroundings {
            now: store.now().await?,
            queue: queue.as_ref(),
            workers: workers.as_deref(),
            lock: lock.as_ref(),
            head: head.as_ref(),
        };
        let reasons = task.why(&around);
        let now = around.now;
        Ok(TaskExplanation { task, now, reasons })
    }
}

/// Returns the task that runs, or is next to run, among those of the same queue with the same lock.
async fn head(store: &dyn TaskStore, task: &Task) -> Result<Option<Task>> {
    for state in [TaskState::Running, TaskState::Pending] {
        let query = ListTasks {
            queue: Some(task.queue.clone()),
            lock: task.lock.clone(),
            state: Some(state),
            brief: true,
            limit: 1,
            ..ListTasks::default()
        };
        if let Some(head) = store.list(&query).await?.items.pop() {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// A token for one queue may not read everything; the rest still explains something.
fn if_permitted<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_not_permitted() => Ok(None),
        Err(error) => Err(error),
    }
}

impl TaskExplanation {
    /// Removes names of holders and hosts, for a caller that may read the task and not its lock or the workers.
    #[must_use]
    pub fn without_names(mut self) -> Self {
        for reason in &mut self.reasons {
            match reason {
                TaskReason::BehindLock { holder, .. } => *holder = None,
                TaskReason::Running { host, .. } => *host = None,
                _ => {}
            }
        }
        self
    }
}

/// JSON view of an explanation; the binary and the server write the same view.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct TaskExplanationView {
    /// Id of the task.
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub id: String,
    /// Queue of the task.
    pub queue: String,
    /// State of the task.
    #[cfg_attr(feature = "openapi", schema(example = "blocked"))]
    pub state: String,
    /// Store time of the explanation.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub now: String,
    /// Reasons why the task does not run now, the most important first.
    pub reasons: Vec<TaskReasonView>,
}

/// Reason why a task does not run now.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct TaskReasonView {
    /// Name of the reason, for programs.
    #[cfg_attr(feature = "openapi", schema(example = "behind_lock"))]
    pub code: String,
    /// The reason as a sentence.
    pub text: String,
    /// Time that the reason names: when the task is due, or when a lease ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub until: Option<String>,
    /// Lock that the task waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// Holder of that lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Task that this task waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub task: Option<String>,
    /// Worker that has leased the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub worker: Option<String>,
}

impl From<&TaskExplanation> for TaskExplanationView {
    fn from(explanation: &TaskExplanation) -> Self {
        let TaskExplanation { task, now, reasons } = explanation;
        Self {
            id: task.id.to_string(),
            queue: task.queue.to_string(),
            state: task.state.to_string(),
            now: exact(*now),
            reasons: reasons.iter().map(|reason| TaskReasonView::new(reason, *now)).collect(),
        }
    }
}

impl TaskReasonView {
    fn new(reason: &TaskReason, now: Timestamp) -> Self {
        let mut view = Self { code: reason.code().to_owned(), text: reason.text(now), ..Self::default() };
        match reason {
            TaskReason::NotDue { at } | TaskReason::WaitsForRetry { at, .. } => view.until = Some(exact(*at)),
            TaskReason::BehindTask { task, lock, .. } => {
                (view.task, view.lock) = (Some(task.to_string()), Some(lock.to_string()));
            }
            TaskReason::BehindLock { lock, holder, until } => {
                view.lock = Some(lock.to_string());
                view.holder = holder.as_ref().map(ToString::to_string);
                view.until = Some(exact(*until));
            }
            TaskReason::Running { worker, until, .. } => {
                view.worker = worker.map(|worker| worker.to_string());
                view.until = until.map(exact);
            }
            TaskReason::NotStarted { worker } | TaskReason::LeaseExpired { worker, .. } => {
                view.worker = worker.map(|worker| worker.to_string());
            }
            TaskReason::WaitsForRunner { until } => view.until = Some(exact(*until)),
            _ => {}
        }
        view
    }
}
