//! History of tasks, derived from their records, and its JSON view.

use serde::Serialize;

use super::admin::Tasks;
use crate::client::locks::rfc3339;
use crate::error::Result;
use crate::model::{
    ExecutionId, Holder, Message, QueueName, Task, TaskHistoryEvent, TaskHistoryKind, TaskId, Timestamp,
    Token, WorkerId,
};
use crate::store::ListTasks;

/// Event in the history of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TaskHistoryView {
    /// Time of the event.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Id of the task.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub task: TaskId,
    /// Queue of the task.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub queue: QueueName,
    /// Id of the execution, if the task is an execution of a workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub execution: Option<ExecutionId>,
    /// Kind of the event.
    pub kind: TaskHistoryKind,
    /// Number of the attempt that the event belongs to; 0 before the first attempt.
    pub attempt: u32,
    /// Fencing token of the task at the event.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// Worker of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<uuid::Uuid>))]
    pub worker: Option<WorkerId>,
    /// Duration of the attempt that this event ended, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<f64>,
    /// Caller that caused the event, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub by: Option<Holder>,
    /// Error or reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Message>,
}

impl TaskHistoryView {
    /// Returns the view of an event of this task.
    pub fn new(task: &Task, event: TaskHistoryEvent) -> Self {
        let TaskHistoryEvent { at, kind, attempt, token, worker, started_at, by, reason, .. } = event;
        Self {
            at,
            task: task.id,
            queue: task.queue.clone(),
            execution: ExecutionId::of_task(task),
            kind,
            attempt,
            token,
            worker,
            after_seconds: started_at.map(|start| at.since(start).as_secs_f64()),
            by,
            reason,
        }
    }

    /// Returns the events that the record of a task knows, oldest first.
    pub fn all(task: &Task) -> Vec<Self> {
        task.history().into_iter().map(|event| Self::new(task, event)).collect()
    }
}

impl Tasks {
    /// Returns the events of one task that its record knows, oldest first.
    pub async fn history(&self, id: TaskId) -> Result<Vec<TaskHistoryView>> {
        Ok(TaskHistoryView::all(&self.get(id).await?))
    }

    /// Returns the events of up to `tasks` tasks that match the query, the newest of them, oldest
    /// event first. An older task may have newer events: it is not read.
    pub async fn history_of(&self, query: &ListTasks, tasks: usize) -> Result<Vec<TaskHistoryView>> {
        let mut query = query.clone().brief(true);
        let (mut events, mut left) = (Vec::new(), tasks);
        while left > 0 {
            query.limit = u32::try_from(left).unwrap_or(u32::MAX);
            let page = self.list(&query).await?;
            events.extend(page.items.iter().take(left).flat_map(TaskHistoryView::all));
            left = left.saturating_sub(page.items.len());
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        events.sort_by_key(|event| event.at);
        Ok(events)
    }
}
