//! Only a trigger may say that a webhook started an execution: a command may rely on it that the body was signed.
//!
//! An execution is a task whose payload has the facts of its start. A caller that adds, changes or schedules tasks of a
//! workflow's queue writes that payload itself, so facts of a webhook are refused there.

use leasehold::model::{Payload, QueueName, TaskId, WebhookEvent, WorkflowName};
use leasehold::store::TaskStore;

use crate::problem::{Answer, Problem};

/// Refuses a payload with facts of a webhook for the queue of a workflow.
pub(crate) fn must_not_claim_a_webhook(queue: &QueueName, payload: &Payload) -> Answer<()> {
    if WorkflowName::of_queue(queue).is_none() || WebhookEvent::facts_in(payload).is_empty() {
        return Ok(());
    }
    let problem = Problem::new("FORBIDDEN", "only a trigger may say that a webhook started an execution");
    Err(problem.hint("leave out the facts of a webhook, or send the event to POST /api/webhooks/TRIGGER"))
}

/// The same for a task that is there and gets another payload: it may keep the facts that it has.
pub(crate) async fn must_keep_its_webhook(
    tasks: &dyn TaskStore,
    id: TaskId,
    payload: Option<&Payload>,
) -> Answer<()> {
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
