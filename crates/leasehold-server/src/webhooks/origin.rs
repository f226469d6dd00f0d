//! Only a trigger may claim that a webhook started an execution, because a command may rely on the
//! body being signed.
//!
//! An execution is a task whose payload contains the facts of its start. A caller that adds,
//! updates or schedules tasks of a workflow's queue writes that payload itself, so webhook facts
//! are rejected there.

use leasehold::model::{Payload, QueueName, TaskId, WebhookEvent, WorkflowName};
use leasehold::store::TaskStore;

use crate::problem::{ApiResult, Problem};

/// Rejects a payload with webhook facts for the queue of a workflow.
pub(crate) fn must_not_claim_a_webhook(queue: &QueueName, payload: &Payload) -> ApiResult<()> {
    if WorkflowName::of_queue(queue).is_none() || WebhookEvent::facts_in(payload).is_empty() {
        return Ok(());
    }
    let problem = Problem::new("FORBIDDEN", "only a trigger may claim that a webhook started an execution");
    Err(problem.hint("omit the webhook facts, or send the event to POST /api/webhooks/TRIGGER"))
}

/// Like [`must_not_claim_a_webhook`], for an existing task that gets a new payload: the task may
/// keep its webhook facts.
pub(crate) async fn must_keep_its_webhook(
    tasks: &dyn TaskStore,
    id: TaskId,
    payload: Option<&Payload>,
) -> ApiResult<()> {
    let Some(payload) = payload else { return Ok(()) };
    let claimed = WebhookEvent::facts_in(payload);
    if claimed.is_empty() {
        return Ok(());
    }
    match tasks.get(id).await? {
        Some(task) if WebhookEvent::facts_in(&task.payload) != claimed => {
            must_not_claim_a_webhook(&task.queue, payload)
        }
        _ => Ok(()),
    }
}
