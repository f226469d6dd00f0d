//! Changes of tasks by people: the client that changes a task holds the claim on its issue for that
//! moment.

use std::sync::{Mutex, PoisonError};

use super::desk::{Desk, cannot, holder};
use super::leasing::wanted;
use super::record::MAX_VALUE;
use super::sight::Sight;
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{Metadata, Task, TaskAnswer, TaskId, TaskOp, Token, ValidationError};
use crate::store::github::answers::Issue;
use crate::store::github::claim::{Asking, Says};
use crate::store::github::issues::pause;
use crate::store::github::protocol::Written;
use crate::store::github::view::{RAISED, View};

/// Maximum number of attempts while other clients change the task.
const TRIES: u32 = 6;

impl Desk {
    /// Applies an operation that was requested by hand.
    pub(super) async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let Some(number) = self.number(id).await? else { return Ok(None) };
        check(op)?;
        for again in 0..TRIES {
            let Some((issue, _, sight)) = self.look(number).await? else { return Ok(None) };
            let mut task = sight.task.clone();
            let answer = task.apply(op, sight.now);
            if answer != TaskAnswer::Done {
                return Ok(Some((answer, sight.task)));
            }
            if sight.alive {
                return self.ask_to_stop(number, op, &sight, task).await.map(Some);
            }
            refuse_archiving(op)?;
            if let Some(changed) = self.change_at_rest(&issue, &sight, op).await? {
                return Ok(Some(changed));
            }
            pause(&self.protocol.api, again).await;
        }
        let message = format!("issue #{number} is being changed by others");
        Err(Error::store(StoreErrorKind::Unavailable, message, "try again"))
    }

    /// Requests the cancellation of a running task. Fails for other operations, because only the
    /// holder edits its claim.
    async fn ask_to_stop(
        &self,
        number: u64,
        op: &TaskOp,
        sight: &Sight,
        task: Task,
    ) -> Result<(TaskAnswer, Task)> {
        let TaskOp::Cancel(cancel) = op else {
            return Err(cannot(
                "changing a task while it runs",
                "stop it first with tasks cancel, or wait until its attempt has ended",
            ));
        };
        if sight.task.cancel.is_some() {
            return Ok((TaskAnswer::Done, sight.task.clone()));
        }
        let asking = Asking { token: task.token, by: cancel.by.clone(), reason: cancel.reason.clone() };
        self.protocol.api.post_comment(number, &Says::Asked(asking).write()).await?;
        Ok((TaskAnswer::Done, task))
    }

    /// Changes a task that no worker holds; returns `None` if another client is changing it.
    async fn change_at_rest(
        &self,
        issue: &Issue,
        seen: &Sight,
        op: &TaskOp,
    ) -> Result<Option<(TaskAnswer, Task)>> {
        if matches!(op, TaskOp::Retry(_)) {
            self.reopen(issue).await?;
        }
        let (number, queue, done) = (issue.number, &seen.task.queue, Mutex::new(None));
        let errand = |view: &View, _: Token| {
            let sight = self.sight(queue, issue, view).filter(|sight| !sight.alive)?;
            let mut task = sight.task.clone();
            let answer = task.apply(op, sight.now);
            let is_done = answer == TaskAnswer::Done;
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some((answer, task.clone()));
            is_done.then(|| Written { record: sight.record(&task), holds: false })
        };
        let ask = wanted(by(op), RAISED, Metadata::default());
        let was_written = self.claim(number, &ask, &errand, true).await?;
        let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        let done = done.filter(|(answer, _)| was_written || *answer != TaskAnswer::Done);
        if let Some((_, task)) = done.as_ref().filter(|_| was_written) {
            self.finish(number, task, issue.is_closed() && !matches!(op, TaskOp::Retry(_))).await;
        }
        Ok(done)
    }
}

fn by(op: &TaskOp) -> crate::model::Holder {
    match op {
        TaskOp::Cancel(cancel) => cancel.by.clone(),
        TaskOp::Retry(retry) => retry.by.clone(),
        TaskOp::Update(change) => change.by.clone().unwrap_or_else(holder),
        _ => holder(),
    }
}

fn check(op: &TaskOp) -> Result<()> {
    if let TaskOp::Update(change) = op
        && let Some(payload) = &change.payload
        && payload.as_str().len() > MAX_VALUE
    {
        let size = payload.as_str().len();
        return Err(ValidationError(format!(
            "a payload of {size} bytes does not fit into a comment; {MAX_VALUE} is the most"
        ))
        .into());
    }
    Ok(())
}

fn refuse_archiving(op: &TaskOp) -> Result<()> {
    match op {
        TaskOp::Update(change) if change.archived.is_some() => Err(cannot(
            "putting a task away",
            "a closed issue is away; take its label off to have it out of the queue",
        )),
        _ => Ok(()),
    }
}
