//! Issues for new tasks. Two clients that add the same task at once must not end up with two. So a
//! client creates an issue in the same way as it acquires a lock: the new issue states that it is
//! only a candidate, its creator checks whether there is another one, and only then the
//! issue becomes a task.

use std::convert::Infallible;

use serde_json::json;

use super::context::{Context, CreatedIssues, not_supported};
use super::issue_body::{IssueBody, IssueStage};
use super::labels::TASK_LABEL;
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{Admission, Enqueued, KeyOwner, NewTask, Reuse, TaskState};
use crate::store::BootInstant;
use crate::store::github::api::Issue;
use crate::store::github::locks::GRACE;
use crate::store::github::options::CANDIDATE_TTL;

/// Maximum number of tasks that are added at once: their candidates must not expire meanwhile.
const BATCH: usize = 10;
/// Maximum number of reads while other candidates give way.
const MAX_READS: u32 = 8;

struct TaskDraft<'a> {
    new: &'a NewTask,
    body: IssueBody,
    /// Number of the task's issue; 0 until there is one.
    number: u64,
    deadline: BootInstant,
    /// Issue whose key the task takes over.
    takes_key_of: Option<u64>,
    /// Whether the edit that makes the issue a task was sent: even without a response, the issue may
    /// be a task from then on.
    settle_sent: bool,
}

enum DraftDecision {
    /// The draft can become a task.
    Settle,
    /// Other candidates exist, or the list is stale: read again.
    Wait,
    /// Another client was first.
    GiveWay,
}

impl Context {
    /// Adds tasks. Each takes a second or two, because GitHub does not accept issues faster.
    pub(super) async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        for new in new {
            if new.lock.is_some() || new.lock_queue_limit.is_some() {
                return Err(not_supported(
                    "a task with a lock, or with a limit of its lock queue,",
                    "let its worker acquire the lock when it runs the task",
                ));
            }
            self.register_queue(&new.queue)?;
            IssueBody::new(new)?;
        }
        let _turn = self.creation.lock().await;
        let mut enqueued = Vec::with_capacity(new.len());
        for batch in new.chunks(BATCH) {
            enqueued.extend(self.enqueue_batch(batch).await?);
        }
        Ok(enqueued)
    }

    async fn enqueue_batch(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        for attempt in 0..MAX_READS {
            if let Some(enqueued) = self.try_enqueue(new).await? {
                return Ok(enqueued);
            }
            self.protocol.api.backoff(attempt).await;
        }
        let message = "another client is adding a task with the same id or key";
        Err(Error::store(StoreErrorKind::Unavailable, message, "try again in a minute"))
    }

    /// Tries to add tasks. Returns `None` if another client was first with one of them: then the
    /// caller has to read again.
    async fn try_enqueue(&self, new: &[NewTask]) -> Result<Option<Vec<Enqueued>>> {
        let created = self.created_issues("all").await?;
        if new.iter().any(|new| created.has_live_candidate(new)) {
            return Ok(None); // An own candidate would have to give way.
        }
        let (mut enqueued, mut drafts) = (Vec::new(), Vec::<TaskDraft<'_>>::new());
        for new in new {
            let (result, takes_key_of) = self.enqueue_result(new, &created, &drafts).await?;
            enqueued.push(result);
            if result == Enqueued::Added(new.id)
                && !created.has(new.id)
                && !drafts.iter().any(|d| d.new.id == new.id)
            {
                let (body, deadline) = (IssueBody::new(new)?, BootInstant::now());
                drafts.push(TaskDraft { new, body, number: 0, deadline, takes_key_of, settle_sent: false });
            }
        }
        let added = self.add_drafts(&mut drafts).await;
        if !matches!(added, Ok(true)) {
            self.withdraw(&drafts).await;
        }
        Ok(added?.then_some(enqueued))
    }

    /// Posts a candidate for each draft, and turns them into tasks; returns whether all drafts are tasks
    /// now. If posting takes long, leaves the other drafts to the next call: the first candidates
    /// must not expire meanwhile.
    async fn add_drafts(&self, drafts: &mut [TaskDraft<'_>]) -> Result<bool> {
        let (began, max_time) = (BootInstant::now(), self.protocol.api.options.candidate_ttl / 3);
        let mut posted = 0;
        for draft in &mut *drafts {
            if posted > 0 && BootInstant::now().after(began) >= max_time {
                break;
            }
            self.post_candidate(draft).await?;
            posted += 1;
        }
        let settled = self.settle_drafts(&mut drafts[..posted]).await?;
        Ok(settled && posted == drafts.len())
    }

    /// Returns the result for a new task by the rules in leasehold-model, and the issue whose key
    /// the task takes over.
    async fn enqueue_result(
        &self,
        new: &NewTask,
        created: &CreatedIssues,
        drafts: &[TaskDraft<'_>],
    ) -> Result<(Enqueued, Option<u64>)> {
        let added = (Enqueued::Added(new.id), None);
        if created.has(new.id) || drafts.iter().any(|draft| draft.new.id == new.id) {
            return Ok(added);
        }
        if let Some(draft) = drafts.iter().find(|draft| draft.body.has_key_of(new)) {
            // The draft is pending, so its key is not free, regardless of `reuse`.
            let (state, fingerprint) = (TaskState::Pending, draft.body.fingerprint);
            return Ok(admit(new, KeyOwner { id: draft.new.id, state, fingerprint }, draft.number));
        }
        let Some((issue, body)) = created.tasks().find(|(_, body)| body.has_key_of(new)) else {
            return Ok(added);
        };
        let state = match new.reuse {
            Reuse::Never => TaskState::Pending,
            _ => self
                .read_fresh(issue.number)
                .await?
                .map_or(TaskState::Pending, |(_, _, task_view)| task_view.task.state),
        };
        Ok(admit(new, KeyOwner { id: body.id, state, fingerprint: body.fingerprint }, issue.number))
    }

    async fn post_candidate(&self, draft: &mut TaskDraft<'_>) -> Result<()> {
        let (api, queue) = (&self.protocol.api, draft.new.queue.as_str());
        draft.deadline = BootInstant::now().plus(api.options.candidate_ttl);
        let issue =
            api.create_issue(&draft.body.title(), &draft.body.text(), &[queue, TASK_LABEL]).await?.value;
        draft.number = issue.number;
        if let Some(user) = &issue.user {
            self.protocol.set_own_login(&user.login);
        }
        if !issue.has_label(queue) || !issue.has_label(TASK_LABEL) {
            let message = format!("GitHub did not let this token label an issue of {}", api.repository());
            let hint = "adding tasks requires push access, or triage";
            return Err(Error::store(StoreErrorKind::NotPermitted, message, hint));
        }
        Ok(())
    }

    /// Reads the other candidates, and turns the drafts into tasks; returns whether all are tasks now.
    async fn settle_drafts(&self, drafts: &mut [TaskDraft<'_>]) -> Result<bool> {
        if drafts.is_empty() {
            return Ok(true);
        }
        for read in 0..MAX_READS {
            let created = self.created_issues("all").await?;
            let decisions: Vec<DraftDecision> = drafts.iter().map(|draft| created.decision(draft)).collect();
            if decisions.iter().any(|decision| matches!(decision, DraftDecision::GiveWay)) {
                return Ok(false);
            }
            if decisions.iter().all(|decision| matches!(decision, DraftDecision::Settle)) {
                for draft in &mut *drafts {
                    if !self.settle_draft(draft, &created).await? {
                        return Ok(false);
                    }
                }
                return Ok(true);
            }
            self.protocol.api.backoff(read).await;
        }
        Ok(false)
    }

    /// Turns a draft into a task; returns whether that succeeded in time. From the end of a candidate on,
    /// other clients add tasks with its key, so no edit is sent then.
    async fn settle_draft(&self, draft: &mut TaskDraft<'_>, created: &CreatedIssues) -> Result<bool> {
        let api = &self.protocol.api;
        if BootInstant::now() >= draft.deadline {
            return Ok(false);
        }
        if let Some((issue, body)) =
            created.issues.iter().find(|(issue, _)| Some(issue.number) == draft.takes_key_of)
        {
            let without_key = json!({ "body": body.without_key().text() });
            api.edit_issue(issue.number, without_key, Some(draft.deadline)).await?;
        }
        let settled = json!({ "body": draft.body.settled().text() });
        draft.settle_sent = true;
        api.edit_issue_repeatedly(draft.number, &settled, draft.deadline).await?;
        self.remember_issue(draft.new.id, draft.number);
        Ok(BootInstant::now() < draft.deadline)
    }

    /// Closes candidates that did not become tasks. A task whose issue is closed is cancelled, so an
    /// issue that may be a task stays open; as a candidate it expires.
    async fn withdraw(&self, drafts: &[TaskDraft<'_>]) {
        for draft in drafts.iter().filter(|draft| draft.number > 0 && !draft.settle_sent) {
            let change = json!({ "state": "closed", "state_reason": "not_planned" });
            if let Err(error) = self.protocol.api.edit_issue(draft.number, change, None).await {
                tracing::warn!(issue = draft.number, %error, "failed to close an issue that is not needed");
            }
        }
    }
}

/// Returns the result for a new task whose key has an owner, and the issue of the owner if the new
/// task takes over the key.
fn admit(new: &NewTask, owner: KeyOwner, issue: u64) -> (Enqueued, Option<u64>) {
    let Ok(admission) = new.admit(Some(owner), |_, _| Ok::<_, Infallible>(None));
    match admission {
        Admission::Refuse(answer) => (answer, None),
        Admission::Add { .. } => (Enqueued::Added(new.id), Some(issue)),
    }
}

impl CreatedIssues {
    /// Decides about a draft, whose candidate is posted, from the other tasks and candidates.
    fn decision(&self, draft: &TaskDraft<'_>) -> DraftDecision {
        let competing = self
            .issues
            .iter()
            .filter(|(issue, body)| issue.number != draft.number && body.competes_with(draft.new));
        let (tasks, candidates): (Vec<_>, Vec<_>) =
            competing.partition(|(_, body)| body.state == IssueStage::Settled);
        let live = candidates.iter().filter(|(issue, _)| self.is_live(issue));
        let candidates: Vec<u64> = live.map(|(issue, _)| issue.number).collect();
        if tasks.iter().any(|(issue, _)| Some(issue.number) != draft.takes_key_of) {
            return DraftDecision::GiveWay;
        }
        // A list without this client's own candidate is stale.
        let is_listed = self.issues.iter().any(|(issue, _)| issue.number == draft.number);
        match (is_listed, candidates.iter().min()) {
            (true, None) => DraftDecision::Settle,
            (true, Some(first)) if *first < draft.number => DraftDecision::GiveWay,
            _ => DraftDecision::Wait,
        }
    }

    /// Whether another call is adding a task with the id or the key of this one.
    fn has_live_candidate(&self, new: &NewTask) -> bool {
        self.issues.iter().any(|(issue, body)| {
            body.state == IssueStage::Candidate && body.competes_with(new) && self.is_live(issue)
        })
    }

    /// Whether a candidate may still become a task.
    fn is_live(&self, issue: &Issue) -> bool {
        !issue.is_closed() && self.now < issue.created_at.plus(CANDIDATE_TTL).plus(GRACE)
    }
}

impl IssueBody {
    fn competes_with(&self, new: &NewTask) -> bool {
        self.id == new.id || self.has_key_of(new)
    }

    fn has_key_of(&self, new: &NewTask) -> bool {
        self.queue == new.queue && self.key.is_some() && self.key == new.key
    }
}
