//! Settling attempts: one edit of the claim is the point of no return.

use super::context::{Context, holder};
use super::lease::{brief_request, lock_name};
use super::record::Record;
use super::task_view::TaskView;
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{Settle, Settled, Task, TaskAnswer, TaskOp, TaskState, Token};
use crate::store::BootInstant;
use crate::store::github::locks::{Claim, ClaimState, CommentContent, UpdatedClaim, View};

/// Maximum number of attempts while other clients change the issue.
const MAX_ATTEMPTS: u32 = 6;

enum SettleResult {
    Settled(TaskState),
    /// The result is not certain yet.
    InDoubt,
    /// The lease may have ended, but no client has recorded its end.
    Late,
    Lost,
}

impl Context {
    /// Settles attempts. One that GitHub refuses keeps no other from being settled; the call fails after
    /// them, because the caller may repeat a settlement that was applied.
    pub(super) async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let (mut settled, mut refused) = (Vec::with_capacity(settle.len()), None);
        for settle in settle {
            match self.settle_one(settle).await {
                Ok(result) => settled.push(result),
                Err(error) if error.is_retryable() => return Err(error),
                // For example, this issue is locked.
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        refused.map_or(Ok(settled), Err)
    }

    async fn settle_one(&self, settle: &Settle) -> Result<Settled> {
        let Some(number) = self.number(settle.id).await? else { return Ok(Settled::Lost) };
        for attempt in 0..MAX_ATTEMPTS {
            match self.try_settle(number, settle).await? {
                SettleResult::Settled(state) => return Ok(Settled::Now(state)),
                SettleResult::Lost => return Ok(Settled::Lost),
                SettleResult::Late => {
                    if let Some(settled) = self.settle_late(number, settle).await? {
                        return Ok(settled);
                    }
                }
                SettleResult::InDoubt => {}
            }
            self.protocol.api.backoff(attempt).await;
        }
        let message =
            format!("other clients are changing issue #{number}; the state of its task is not known yet");
        Err(Error::store(StoreErrorKind::Unavailable, message, "try again"))
    }

    async fn try_settle(&self, number: u64, settle: &Settle) -> Result<SettleResult> {
        let _turn = self.in_order.enter(lock_name(number)).await;
        let sent = BootInstant::now();
        let Some((issue, view, task_view)) = self.read_fresh(number).await? else {
            return Ok(SettleResult::Lost);
        };
        let TaskView { mut task, issue_task, now, .. } = task_view;
        let written = view.task().map(|known| known.record.task(&issue_task).state);
        if task.token != settle.token || written.is_none() {
            return Ok(SettleResult::Lost);
        }
        if written != Some(TaskState::Running) {
            // The attempt is already settled. But a client that clears ended claims may have read
            // the claim before that, and may delete it.
            if view.is_contested() {
                return Ok(SettleResult::InDoubt);
            }
            self.protocol.keep_record(number, &view).await?;
            self.update_issue(number, &task, issue.is_closed()).await;
            return Ok(SettleResult::Settled(task.state));
        }
        let held = self.protocol.held_claim(&view, |claim| claim.token == settle.token);
        // A withdrawal that arrives late would delete the settlement.
        let Some(state) = held.filter(|state| !self.protocol.is_withdrawn(state.id)) else {
            return Ok(SettleResult::Late);
        };
        let Some(claim) = state.claim.clone() else { return Ok(SettleResult::Late) };
        let deadline = self.protocol.deadline(&claim.lease_id, &view, &state, sent);
        if now >= state.expires_at || BootInstant::now() >= deadline {
            return Ok(SettleResult::Late);
        }
        if !matches!(task.apply(&TaskOp::Settle(settle.clone()), now), TaskAnswer::Settled(Settled::Now(_))) {
            return Ok(SettleResult::Lost);
        }
        let claim = Claim { task: Some(Box::new(Record::of(&task, &issue_task))), ..claim };
        self.write_settled(number, &view, &state, claim, deadline, task).await
    }

    /// Writes a settlement. Removes the assignee first: if the process dies in between, the claim
    /// still shows that it had assigned the login.
    async fn write_settled(
        &self,
        number: u64,
        view: &View,
        state: &ClaimState,
        mut claim: Claim,
        deadline: BootInstant,
        task: Task,
    ) -> Result<SettleResult> {
        let (api, id) = (&self.protocol.api, claim.lease_id);
        let is_closed = self.protocol.unassign(number, view, state, &mut claim).await;
        let is_closed = is_closed.is_some_and(|issue| issue.is_closed());
        if BootInstant::now() >= deadline {
            return Ok(SettleResult::Late);
        }
        if self.protocol.may_be_edited_late(&id) {
            // A heartbeat in doubt may still restore the old comment: the new one has a newer token.
            claim.token = view.token().next(view.now);
            if api.post_comment(number, &CommentContent::Released(claim).render()).await?.is_none() {
                return Ok(SettleResult::Lost);
            }
            if let Err(error) = api.delete_comment(state.id).await {
                tracing::debug!(comment = state.id, %error, "failed to delete an old claim; it stays until it expires");
            }
        } else {
            let edited = api.edit_comment(state.id, &CommentContent::Released(claim).render()).await;
            if edited.inspect_err(|_| self.protocol.mark_in_doubt(&id))?.is_none() {
                return Ok(SettleResult::InDoubt);
            }
            if BootInstant::now() >= deadline {
                return Ok(SettleResult::InDoubt);
            }
        }
        self.protocol.forget_lease(&id);
        self.update_issue(number, &task, is_closed).await;
        self.protocol.delete_old_comments(view).await;
        Ok(SettleResult::Settled(task.state))
    }

    /// Settles an attempt whose lease has ended, by a claim of its own. The settlement counts if no
    /// client has recorded the end of the lease. Returns `None` if another client is changing the
    /// task.
    async fn settle_late(&self, number: u64, settle: &Settle) -> Result<Option<Settled>> {
        let Some((issue, _, task_view)) = self.read_fresh(number).await? else {
            return Ok(Some(Settled::Lost));
        };
        let queue = task_view.task.queue;
        let update = |view: &View, _: Token| {
            let task_view = self.task_view(&queue, &issue, view)?;
            let mut task = task_view.task.clone();
            let before = task.version;
            let TaskAnswer::Settled(settled) = task.apply(&TaskOp::Settle(settle.clone()), task_view.now)
            else {
                return None;
            };
            let is_new = task.version != before;
            let updated = is_new.then(|| UpdatedClaim { record: task_view.record(&task), holds: false });
            Some(((settled, task), updated))
        };
        match self.claim(number, brief_request(holder()), update, true).await? {
            (true, Some((settled, task))) => {
                self.update_issue(number, &task, issue.is_closed()).await;
                Ok(Some(settled))
            }
            // There was nothing to write: the task has ended, or another worker has held it.
            (false, Some((settled, task))) if settled == Settled::Lost || task.state.is_terminal() => {
                Ok(Some(settled))
            }
            _ => Ok(None),
        }
    }
}
