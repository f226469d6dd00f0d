//! Changes of tasks by people: the client holds the claim on the issue of the task for that moment.

use super::context::{Context, holder, not_supported};
use super::lease::brief_request;
use super::record::MAX_VALUE;
use super::task_view::TaskView;
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{Holder, Task, TaskAnswer, TaskId, TaskOp, Token, ValidationError, ValueKind};
use crate::store::github::api::Issue;
use crate::store::github::locks::{CommentContent, StopRequestComment, UpdatedClaim, View};

/// Maximum number of attempts while other clients change the task.
const MAX_ATTEMPTS: u32 = 6;

impl Context {
    /// Applies an operation that was requested by hand.
    pub(super) async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let Some(number) = self.number(id).await? else { return Ok(None) };
        check_payload_size(op)?;
        for attempt in 0..MAX_ATTEMPTS {
            let Some((issue, view, task_view)) = self.read_fresh(number).await? else { return Ok(None) };
            let mut task = task_view.task.clone();
            let answer = task.apply(op, task_view.now);
            if answer != TaskAnswer::Done {
                // The operation may have been applied before, without a response.
                self.protocol.keep_record(number, &view).await?;
                return Ok(Some((answer, task_view.task)));
            }
            if task_view.is_held {
                return self.request_cancel(number, op, &task_view, task).await.map(Some);
            }
            refuse_archiving(op)?;
            if let Some(changed) = self.change_unleased(&issue, &task_view, op).await? {
                return Ok(Some(changed));
            }
            self.protocol.api.backoff(attempt).await;
        }
        let message = format!("other clients are changing issue #{number}");
        Err(Error::store(StoreErrorKind::Unavailable, message, "try again"))
    }

    /// Requests the cancellation of a running task; only the holder can change anything else.
    async fn request_cancel(
        &self,
        number: u64,
        op: &TaskOp,
        task_view: &TaskView,
        task: Task,
    ) -> Result<(TaskAnswer, Task)> {
        let TaskOp::Cancel(cancel) = op else {
            return Err(not_supported(
                "changing a task while it runs",
                "stop it first with tasks cancel, or wait until its attempt has ended",
            ));
        };
        if task_view.task.cancel.is_some() {
            return Ok((TaskAnswer::Done, task_view.task.clone()));
        }
        let stop_request =
            StopRequestComment { token: task.token, by: cancel.by.clone(), reason: cancel.reason.clone() };
        self.protocol.api.post_comment(number, &CommentContent::StopRequest(stop_request).render()).await?;
        Ok((TaskAnswer::Done, task))
    }

    /// Changes a task that no worker holds; returns `None` if another client is changing it.
    async fn change_unleased(
        &self,
        issue: &Issue,
        read: &TaskView,
        op: &TaskOp,
    ) -> Result<Option<(TaskAnswer, Task)>> {
        if matches!(op, TaskOp::Retry(_)) {
            self.reopen(issue).await?;
        }
        let (number, queue) = (issue.number, &read.task.queue);
        let update = |view: &View, _: Token| {
            let task_view = self.task_view(queue, issue, view).filter(|task_view| !task_view.is_held)?;
            let mut task = task_view.task.clone();
            let answer = task.apply(op, task_view.now);
            let is_changed = answer == TaskAnswer::Done;
            let updated = is_changed.then(|| UpdatedClaim { record: task_view.record(&task), holds: false });
            Some(((answer, task), updated))
        };
        let (was_written, done) = self.claim(number, brief_request(author(op)), update, true).await?;
        let done = done.filter(|(answer, _)| was_written || *answer != TaskAnswer::Done);
        if let Some((_, task)) = done.as_ref().filter(|_| was_written) {
            self.update_issue(number, task, issue.is_closed() && !matches!(op, TaskOp::Retry(_))).await;
        }
        Ok(done)
    }
}

fn author(op: &TaskOp) -> Holder {
    match op {
        TaskOp::Cancel(cancel) => cancel.by.clone(),
        TaskOp::Retry(retry) => retry.by.clone(),
        TaskOp::Update(change) => change.by.clone().unwrap_or_else(holder),
        _ => holder(),
    }
}

fn check_payload_size(op: &TaskOp) -> Result<()> {
    if let TaskOp::Update(change) = op
        && let Some(payload) = &change.payload
        && payload.as_str().len() > MAX_VALUE
    {
        let size = payload.as_str().len();
        return Err(ValidationError::new(
            ValueKind::Payload,
            format!("the payload of {size} bytes does not fit into a comment: the maximum is {MAX_VALUE}"),
        )
        .into());
    }
    Ok(())
}

fn refuse_archiving(op: &TaskOp) -> Result<()> {
    match op {
        TaskOp::Update(change) if change.archived.is_some() => Err(not_supported(
            "archiving a task",
            "close the issue instead; remove its label to take it out of the queue",
        )),
        _ => Ok(()),
    }
}
