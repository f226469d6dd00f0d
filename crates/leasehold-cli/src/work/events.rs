//! Events that a worker prints with `--json`: one JSON object per line on stdout. docs/json.md
//! describes them.

use leasehold::model::{ExecutionId, Payload, QueueName, Task, WorkerId, WorkflowName};
use serde::Serialize;

/// Task that an event is about.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Subject {
    task: String,
    queue: String,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<String>,
}

impl Subject {
    pub(super) fn new(task: &Task) -> Self {
        Self {
            task: task.id.to_string(),
            queue: task.queue.to_string(),
            attempt: task.attempt,
            execution_id: ExecutionId::of_task(task).map(|id| id.to_string()),
            workflow: WorkflowName::of_queue(&task.queue).map(|name| name.to_string()),
        }
    }
}

/// Event, printed as one line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum WorkEvent<'a> {
    /// The worker takes tasks from now on.
    Working { worker: WorkerId, queues: &'a [QueueName], slots: u32 },
    /// An attempt has started.
    Started {
        #[serde(flatten)]
        of: &'a Subject,
        token: u64,
    },
    /// The command has written a line.
    Output {
        #[serde(flatten)]
        of: &'a Subject,
        stream: Stream,
        text: &'a str,
    },
    /// An attempt has ended.
    Ended {
        #[serde(flatten)]
        of: &'a Subject,
        success: bool,
        outcome: Ending,
        /// Whether another attempt follows.
        will_retry: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a Payload>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    },
}

/// Stream that a line was written to.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ending {
    Succeeded,
    /// The command failed.
    Failed,
    /// The command requested a later attempt by its exit code.
    Snoozed,
    /// The command was ended: the task was cancelled, its lease was lost, or the worker shuts down.
    Stopped,
}
