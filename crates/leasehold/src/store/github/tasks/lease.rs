//! Leases of tasks: a worker acquires the claim on the next issue, and extends it with heartbeats.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::context::{Context, holder};
use super::issue_body::task_from_issue;
use super::labels;
use super::lease_order::{Attempt, NextStep, Order, PendingIssue, PendingIssues, Reason};
use super::record::Record;
use super::task_view::TaskView;
use crate::Result;
use crate::model::{
    HeartbeatResult, HeldTask, Holder, LeaseTasks, Leased, LockName, LockRequest, Metadata, NewTask, Outcome,
    Retry, Task, TaskAnswer, TaskOp, TaskState, Timestamp, Token, Ttl, When,
};
use crate::store::BootInstant;
use crate::store::clock::new_lease_id;
use crate::store::github::locks::{
    AcquireAttempt, Claim, HEARTBEAT, UpdatedClaim, View, exclusive_request, is_lock, worker_metadata,
};
use crate::store::github::options::CANDIDATE_TTL;
use crate::store::support::mutex::lock;

/// Time after which a call leaves the other issues to the next call: a lease counts from before it was
/// requested.
const MAX_CALL_TIME: Duration = Duration::from_secs(5);
/// Maximum number of issues whose comments one call requests. Cached comments do not count, so the
/// next calls reach the issues behind the first ones.
const MAX_COMMENT_READS: usize = 100;
/// Maximum number of assigned issues that one call tries to lease and finds assigned to a person. The next call
/// continues behind them.
const MAX_ASSIGNED: usize = 100;
/// Maximum number of outdated issues that one call updates.
const MAX_UPDATES: usize = 100;

/// State of one call: what it may still do for issues before it knows whether it can lease them, and what it
/// has found.
struct LeaseCall {
    comment_reads: usize,
    assigned: usize,
    updates: usize,
    /// Time at which the first of the tasks is due that are not due yet.
    due: Option<Timestamp>,
    /// Time at which the task of the last step is due, if it is not due yet.
    due_of_last: Option<Timestamp>,
    /// Whether the next call gets further, because it has less to read or to try.
    has_progressed: bool,
    /// Whether issues are left to a later call.
    is_partial: bool,
}

/// Result of one step for an issue.
enum LeaseStep {
    Leased(Box<Task>),
    /// The end of an expired lease was written; the task cannot be leased now.
    Ended,
    Refused,
    /// The comments of the issue were read, or are left to a later call.
    Classified,
}

impl Context {
    pub(super) async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let mut tried = self.leasing.lock().await;
        let began = BootInstant::now();
        let (mut pending, now) = self.list_pending(request).await?;
        let listed = BootInstant::now();
        let (mut tasks, mut call, mut is_late) = (Vec::new(), LeaseCall::new(), false);
        while !request.is_full(&tasks) {
            let Some(entry) = pending.next() else {
                if !call.is_partial {
                    tried.end_pass(&request.queues);
                }
                break;
            };
            let is_assigned = entry.issue.assigned().next().is_some();
            if tried.contains(&entry.issue) {
                continue;
            }
            if entry.is_known && is_assigned && call.assigned == 0 {
                call.is_partial = true;
                continue;
            }
            let (number, queue) = (entry.issue.number, entry.queue.clone());
            let step_began = BootInstant::now();
            let step = if entry.is_known {
                self.lease_issue(&entry, request, tasks.len()).await
            } else {
                match self.classify(entry, now, &mut call).await {
                    // The next call would have to read it again if it changes.
                    Ok(Some((entry, _))) if tasks.is_empty() && is_slow(step_began) => {
                        self.lease_issue(&entry, request, 0).await
                    }
                    Ok(Some((entry, order))) => {
                        pending.reinsert(entry, order);
                        Ok(LeaseStep::Classified)
                    }
                    classified => classified.map(|_| LeaseStep::Classified),
                }
            };
            let (mut in_vain, has_ended) = (None, matches!(step, Ok(LeaseStep::Ended)));
            let due_in = call.due_of_last.take().zip(now).map(|(due, now)| due.since(now));
            let attempt = || {
                let ended_at = self.protocol.api.dates.estimate(BootInstant::now());
                let delayed_by = is_slow(step_began).then(|| BootInstant::now().after(step_began));
                Attempt { number, queue, ended_at, delayed_by, due_in }
            };
            match step {
                Ok(LeaseStep::Leased(task)) => tasks.push(*task),
                Ok(LeaseStep::Ended) => call.has_progressed = true,
                Ok(LeaseStep::Refused) => {
                    call.assigned = call.assigned.saturating_sub(usize::from(is_assigned));
                    // Beside other tasks, a task that has to run alone is refused as well.
                    in_vain = (tasks.is_empty() || is_assigned).then_some(Reason::Refused);
                }
                Ok(LeaseStep::Classified) => {}
                Err(error) if error.is_retryable() && tasks.is_empty() => {
                    // A service that names a time refuses all requests until then.
                    if error.retry_after().is_none() {
                        tried.record_failure(attempt());
                    }
                    return Err(error);
                }
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "leasing stops early; the leased tasks are returned");
                    break;
                }
                Err(error) => {
                    tracing::warn!(issue = number, %error, "failed to lease a task");
                    in_vain = Some(Reason::Failed);
                }
            }
            // A call without a task counts from the list, however long that took, so that each call gets
            // further than the one before.
            let since = if tasks.is_empty() { listed } else { began };
            is_late = BootInstant::now().after(since) > MAX_CALL_TIME;
            let is_in_vain = is_slow(step_began) || (is_late && !call.has_progressed);
            if tasks.is_empty() && is_in_vain && !has_ended {
                in_vain = in_vain.or(Some(Reason::Refused));
            }
            if let Some(reason) = in_vain {
                call.has_progressed |= tried.insert(reason, attempt());
            }
            if is_late || tasks.last().is_some_and(Task::runs_alone) {
                break;
            }
        }
        tried.end_call(!tasks.is_empty());
        let next_due = match now.filter(|_| is_late && tasks.is_empty() && call.has_progressed) {
            Some(now) => Some((now, now)), // The next call continues at once.
            None => call.due.filter(|_| !request.is_full(&tasks)).zip(now),
        };
        Ok(Leased { tasks, next_due, more: false, expired: 0 })
    }

    /// Returns all open issues of the requested queues, in the order in which they are leased, without
    /// those of failed tasks: a person who wants such a task again removes the label.
    async fn list_pending(&self, request: &LeaseTasks) -> Result<(PendingIssues, Option<Timestamp>)> {
        let (mut pending, mut now, mut seen) = (PendingIssues::default(), None, BTreeSet::new());
        for queue in &request.queues {
            self.register_queue(queue)?;
            let listed = self.protocol.api.list_issues(queue.as_str(), "open").await?;
            now = now.max(Some(listed.now));
            for issue in listed.value {
                let body = self.trusted_body(&issue);
                let is_excluded = is_lock(&issue) || issue.has_label(labels::FAILED);
                if is_excluded || !seen.insert(issue.number) || !self.is_task(&issue, body.as_ref()) {
                    continue;
                }
                let Some(issue_task) = task_from_issue(&issue, queue, body.as_ref()) else { continue };
                let is_plain = issue.comments == 0 && issue.assigned().next().is_none();
                let is_known = is_plain && issue_task.state == TaskState::Pending;
                pending.add(queue, issue, &issue_task, is_known);
            }
        }
        Ok((pending, now))
    }

    /// Reads the comments of an issue, and returns the issue with its position if its task can be leased. Leaves
    /// the issue to a later call if this one may read no more comments.
    async fn classify(
        &self,
        mut entry: PendingIssue,
        now: Option<Timestamp>,
        call: &mut LeaseCall,
    ) -> Result<Option<(PendingIssue, Order)>> {
        let (now, was_cached) = (now.unwrap_or_default(), self.is_cached(&entry.issue));
        if !was_cached && !spend(&mut call.comment_reads) {
            call.is_partial = true;
            return Ok(None);
        }
        let task_view = self.read_cached(&entry.queue, &entry.issue, now).await?;
        call.has_progressed |= !was_cached && self.is_cached(&entry.issue);
        let Some(task_view) = task_view else { return Ok(None) };
        match NextStep::of(&task_view, &entry.issue) {
            NextStep::Lease(order) => return Ok(Some((entry, order))),
            NextStep::NotDue(due) => {
                call.due = call.due.into_iter().chain([due]).min();
                call.due_of_last = Some(due);
            }
            NextStep::UpdateIssue => {
                if !self.is_update_refused(&entry.issue)
                    && spend(&mut call.updates)
                    && self.update_issue_or_retry(&entry.issue, &task_view).await?
                {
                    entry.retry_requested = true;
                    return Ok(Some((entry, task_view.issue_task.order())));
                }
            }
            NextStep::Skip => {}
        }
        Ok(None)
    }

    /// Acquires the claim on an issue, if its task can still be leased then.
    async fn lease_issue(
        &self,
        entry: &PendingIssue,
        request: &LeaseTasks,
        leased_count: usize,
    ) -> Result<LeaseStep> {
        let (issue, queue) = (&entry.issue, &entry.queue);
        let update = |view: &View, token: Token| {
            let task_view = self.task_view(queue, issue, view)?;
            let (task, holds) =
                apply_lease(&task_view, entry.retry_requested, token, (request, leased_count))?;
            let record = task_view.record(&task);
            Some(((task, holds), Some(UpdatedClaim { record, holds })))
        };
        let now = self.protocol.api.dates.estimate(BootInstant::now());
        let mut metadata = worker_metadata(&request.worker.to_string(), now);
        labels::add_label_metadata(issue, &mut metadata);
        let claim = exclusive_request(new_lease_id(), holder(), request.ttl, metadata);
        match self.claim(issue.number, claim, update, false).await? {
            (true, Some((task, true))) => Ok(LeaseStep::Leased(Box::new(task))),
            (true, Some((task, false))) => {
                self.update_issue(issue.number, &task, issue.is_closed()).await;
                Ok(LeaseStep::Ended)
            }
            _ => Ok(LeaseStep::Refused),
        }
    }

    /// Sends a heartbeat for each task; returns the results in the same order.
    pub(super) async fn heartbeat(&self, held: &[HeldTask], ttl: Ttl) -> Result<Vec<HeartbeatResult>> {
        let (mut results, mut failed) = (Vec::with_capacity(held.len()), None);
        for held in held {
            match self.heartbeat_one(held, ttl).await {
                Ok(result) => results.push(result),
                // The other leases are extended nevertheless. Only an answer shows that a lease is lost.
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(results), Err)
    }

    async fn heartbeat_one(&self, held: &HeldTask, ttl: Ttl) -> Result<HeartbeatResult> {
        let Some(number) = self.number(held.id).await? else { return Ok(HeartbeatResult::Lost) };
        let _turn = self.in_order.enter(lock_name(number)).await;
        let sent = BootInstant::now();
        let Some((_, view, task_view)) = self.read_fresh(number).await? else {
            return Ok(HeartbeatResult::Lost);
        };
        let matches = |claim: &Claim| {
            claim.token == held.token && claim.task.as_ref().is_some_and(|task| task.token == held.token)
        };
        let Some(mut state) = self.protocol.held_claim(&view, matches) else {
            return Ok(HeartbeatResult::Lost);
        };
        let TaskView { mut task, issue_task, now, .. } = task_view;
        let TaskAnswer::Heartbeat(result @ HeartbeatResult::Extended(_)) =
            task.apply(&TaskOp::Heartbeat(held.clone(), ttl), now)
        else {
            return Ok(HeartbeatResult::Lost);
        };
        if let Some(claim) = &mut state.claim {
            claim.task = Some(Box::new(Record::of(&task, &issue_task)));
            claim.metadata.set(HEARTBEAT, now.to_string()).unwrap_or_default();
        }
        let kept = self.protocol.extend(number, &view, &state, sent, Some(ttl)).await?;
        Ok(if kept.is_some() { result } else { HeartbeatResult::Lost })
    }

    /// Acquires the claim on an issue and writes an update into it. `update` returns a value for the
    /// caller, and the content to write, if any. Returns whether the content was written, and the
    /// value.
    pub(super) async fn claim<T: Send>(
        &self,
        number: u64,
        request: LockRequest,
        update: impl Fn(&View, Token) -> Option<(T, Option<UpdatedClaim>)> + Send + Sync,
        is_admin: bool,
    ) -> Result<(bool, Option<T>)> {
        let (name, request, value) = (lock_name(number), Arc::new(request), Mutex::new(None));
        let update = |view: &View, token: Token| {
            let (found, updated) = update(view, token)?;
            *lock(&value) = Some(found);
            updated
        };
        let _turn = self.in_order.enter(name.clone()).await;
        let attempt = AcquireAttempt {
            name: &name,
            number,
            request: &request,
            steal_after: None,
            update: Some(&update),
            is_admin,
        };
        let was_written = matches!(self.protocol.acquire(&attempt).await?, Outcome::Granted(_));
        let value = lock(&value).take();
        Ok((was_written, value))
    }
}

impl LeaseCall {
    const fn new() -> Self {
        Self {
            comment_reads: MAX_COMMENT_READS,
            assigned: MAX_ASSIGNED,
            updates: MAX_UPDATES,
            due: None,
            due_of_last: None,
            has_progressed: false,
            is_partial: false,
        }
    }
}

/// Whether a step alone takes longer than a call may.
fn is_slow(step_began: BootInstant) -> bool {
    BootInstant::now().after(step_began) > MAX_CALL_TIME
}

/// Takes one request from what is left; returns whether there was one.
fn spend(left: &mut usize) -> bool {
    let had_one = *left > 0;
    *left = left.saturating_sub(1);
    had_one
}

/// Returns the name of an issue's lock.
pub(super) fn lock_name(number: u64) -> LockName {
    LockName::new(format!("issue/{number}")).expect("the name is short")
}

/// Returns the request for a claim that is released with its first edit.
pub(super) fn brief_request(holder: Holder) -> LockRequest {
    exclusive_request(new_lease_id(), holder, CANDIDATE_TTL, Metadata::default())
}

/// Returns the task with its lease and `true`; or the task without a lease and `false`, if only the
/// end of its expired lease is to be written. `None` if there is nothing to do.
fn apply_lease(
    task_view: &TaskView,
    retry_requested: bool,
    token: Token,
    (request, leased_count): (&LeaseTasks, usize),
) -> Option<(Task, bool)> {
    let (mut task, now) = (task_view.task.clone(), task_view.now);
    if task_view.is_held {
        return None;
    }
    let is_expired = task_view.is_lease_expired();
    if is_expired {
        task.apply(&TaskOp::Expire, now);
    } else if retry_requested && task.state.is_terminal() {
        prepare_retry(&mut task, &task_view.issue_task, now);
    }
    // A task that runs alone has to be the only task of a response.
    if task.state != TaskState::Pending || (leased_count > 0 && task.runs_alone()) {
        return is_expired.then_some((task, false));
    }
    // The lease has the token of the claim.
    task.token = task.token.max(Token::new(token.get().saturating_sub(1)).unwrap_or_default());
    task.apply(&TaskOp::Lease { worker: request.worker, ttl: request.ttl, begun: true }, now);
    Some((task, true))
}

/// Prepares a task for another run, which a person has requested on its issue.
fn prepare_retry(task: &mut Task, issue_task: &Task, now: Timestamp) {
    let by = Holder::new("a person on GitHub").expect("the text is short");
    if task.state != TaskState::Succeeded {
        task.apply(&TaskOp::Retry(Retry { by }), now);
        return;
    }
    // A succeeded task stays succeeded; a person who reopens its issue wants a new run.
    let new = NewTask {
        when: When::Now,
        priority: task.priority,
        key: task.key.clone(),
        retries: task.retries,
        fingerprint: Some(task.fingerprint),
        ..NewTask::new(task.id, task.queue.clone(), task.payload.clone())
    };
    let (token, version, created_at) = (task.token, task.version, issue_task.created_at);
    *task = Task { token: token.next(now), version: version + 1, created_at, ..Task::new(&new, now) };
}
