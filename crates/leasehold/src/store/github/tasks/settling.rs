//! Settling attempts: one edit of the claim is the point of no return.

use std::sync::{Mutex, PoisonError};

use super::desk::{Desk, holder};
use super::leasing::{lock_name, wanted};
use super::record::Record;
use super::sight::Sight;
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{Metadata, Settle, Settled, Task, TaskAnswer, TaskOp, TaskState, Token};
use crate::store::BootInstant;
use crate::store::github::claim::{Claim, Says};
use crate::store::github::issues::pause;
use crate::store::github::protocol::Written;
use crate::store::github::view::{RAISED, Standing, View};

/// Maximum number of attempts while other clients change the issue.
const LOOKS: u32 = 6;

/// Result of an attempt to settle.
enum Tried {
    Settled(TaskState),
    /// The result is not certain yet.
    Unclear,
    /// The lease may have ended, but no client has recorded its end.
    Late,
    Lost,
}

impl Desk {
    /// Settles attempts, each independently of the others.
    pub(super) async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let mut settled = Vec::with_capacity(settle.len());
        for settle in settle {
            settled.push(match self.settle_one(settle).await {
                // No retry can succeed, for example on an issue that was deleted.
                Err(error) if !error.is_retryable() => {
                    tracing::warn!(task = %settle.id, %error, "an attempt cannot be settled");
                    Settled::Lost
                }
                settled => settled?,
            });
        }
        Ok(settled)
    }

    async fn settle_one(&self, settle: &Settle) -> Result<Settled> {
        let Some(number) = self.number(settle.id).await? else { return Ok(Settled::Lost) };
        for look in 0..LOOKS {
            match self.try_to_settle(number, settle).await? {
                Tried::Settled(state) => return Ok(Settled::Now(state)),
                Tried::Lost => return Ok(Settled::Lost),
                Tried::Late => {
                    if let Some(settled) = self.settle_late(number, settle).await? {
                        return Ok(settled);
                    }
                }
                Tried::Unclear => {}
            }
            pause(&self.protocol.api, look).await;
        }
        let message =
            format!("issue #{number} is being changed by others; what became of its task cannot be said yet");
        Err(Error::store(StoreErrorKind::Unavailable, message, "try again"))
    }

    async fn try_to_settle(&self, number: u64, settle: &Settle) -> Result<Tried> {
        let _lane = self.lanes.enter(&lock_name(number)).await;
        let sent = BootInstant::now();
        let Some((issue, view, sight)) = self.look(number).await? else { return Ok(Tried::Lost) };
        let Sight { mut task, plain, now, .. } = sight;
        let was = view.task().map(|known| known.record.task(&plain).state);
        if task.token != settle.token || was.is_none() {
            return Ok(Tried::Lost);
        }
        if was != Some(TaskState::Running) {
            // The attempt is already settled. But a client that clears ended claims may have read
            // the claim before that, and may delete it.
            if view.is_contested() {
                return Ok(Tried::Unclear);
            }
            self.finish(number, &task, issue.is_closed()).await;
            return Ok(Tried::Settled(task.state));
        }
        let Some(standing) = self.protocol.lease(&view, |claim| claim.token == settle.token) else {
            return Ok(Tried::Late);
        };
        let Some(claim) = standing.claim.clone() else { return Ok(Tried::Late) };
        let deadline = self.protocol.deadline(&claim.lease_id, &view, &standing, sent);
        if now >= standing.ends || BootInstant::now() >= deadline {
            return Ok(Tried::Late);
        }
        if !matches!(task.apply(&TaskOp::Settle(settle.clone()), now), TaskAnswer::Settled(Settled::Now(_))) {
            return Ok(Tried::Lost);
        }
        let claim = Claim { task: Some(Box::new(Record::of(&task, &plain))), ..claim };
        self.write_settled(number, &view, &standing, claim, deadline, task).await
    }

    /// Writes a settlement. Removes the assignee first: if the process dies in between, the claim
    /// still shows that it had assigned the login.
    async fn write_settled(
        &self,
        number: u64,
        view: &View,
        standing: &Standing,
        mut claim: Claim,
        deadline: BootInstant,
        task: Task,
    ) -> Result<Tried> {
        let (api, id) = (&self.protocol.api, claim.lease_id);
        let is_closed = self.protocol.unassign(number, view, standing, &mut claim).await;
        let is_closed = is_closed.is_some_and(|issue| issue.is_closed());
        if BootInstant::now() >= deadline {
            return Ok(Tried::Late);
        }
        let doubtful = self.protocol.mine(&id).is_some_and(|mine| mine.doubtful);
        if doubtful {
            // A heartbeat in doubt may still arrive and restore the old comment: the new comment
            // has a newer token.
            claim.token = view.token().next(view.now);
            if api.post_comment(number, &Says::Released(claim).write()).await?.is_none() {
                return Ok(Tried::Lost);
            }
            if let Err(error) = api.delete_comment(standing.id).await {
                tracing::debug!(comment = standing.id, %error, "an old claim stays until its time is over");
            }
        } else {
            let edited = api.edit_comment(standing.id, &Says::Released(claim).write()).await;
            if edited.inspect_err(|_| self.protocol.doubt(&id))?.is_none() {
                return Ok(Tried::Unclear);
            }
            if BootInstant::now() >= deadline {
                return Ok(Tried::Unclear);
            }
        }
        self.protocol.forget(&id);
        self.finish(number, &task, is_closed).await;
        self.protocol.tidy(view).await;
        Ok(Tried::Settled(task.state))
    }

    /// Settles an attempt whose lease has ended, by a claim of its own. The settlement counts if no
    /// client has recorded the end of the lease. Returns `None` if another client is changing the
    /// task.
    async fn settle_late(&self, number: u64, settle: &Settle) -> Result<Option<Settled>> {
        let Some((issue, _, sight)) = self.look(number).await? else { return Ok(Some(Settled::Lost)) };
        let (queue, done) = (sight.task.queue, Mutex::new(None));
        let errand = |view: &View, _: Token| {
            let sight = self.sight(&queue, &issue, view)?;
            let mut task = sight.task.clone();
            let before = task.version;
            let TaskAnswer::Settled(settled) = task.apply(&TaskOp::Settle(settle.clone()), sight.now) else {
                return None;
            };
            let is_new = task.version != before;
            let record = is_new.then(|| sight.record(&task));
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some((settled, task));
            Some(Written { record: record?, holds: false })
        };
        let ask = wanted(holder(), RAISED, Metadata::default());
        let was_written = self.claim(number, &ask, &errand, true).await?;
        let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        match done {
            Some((settled, task)) if was_written => {
                self.finish(number, &task, issue.is_closed()).await;
                Ok(Some(settled))
            }
            // There was nothing to write: the task has ended, or another worker has held it.
            Some((settled, task)) if settled == Settled::Lost || task.state.is_terminal() => {
                Ok(Some(settled))
            }
            _ => Ok(None),
        }
    }
}
