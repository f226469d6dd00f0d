//! Acquiring a lock: a client posts a candidate comment, then reads all comments. A holder has read
//! them after posting its candidate, and its comment stays for as long as it holds the lock; so of two
//! clients, the later one has seen the comment of the earlier one. This needs neither ordered ids nor
//! clocks that agree.

use std::sync::Arc;

use super::claim::{Claim, CommentContent, EndKind, EndRecord, EndedLease};
use super::protocol::{Assigned, Protocol};
use super::view::{ClaimStage, ClaimState, TaskRecord, View};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Conflict, HeldBy, LockName, LockRequest, Outcome, Timestamp, Token, Ttl};
use crate::store::BootInstant;
use crate::store::github::api::{Dated, Issue, Read};
use crate::store::github::options::CANDIDATE_TTL;
use crate::store::github::tasks::Record;

pub(crate) struct AcquireAttempt<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) number: u64,
    pub(crate) request: &'a Arc<LockRequest>,
    pub(crate) steal_after: Option<Ttl>,
    /// Change to write with the claim, if the lock is not only to be held.
    pub(crate) update: Option<&'a ClaimUpdate<'a>>,
    /// Whether the caller changes something without working on it: then neither a closed issue nor
    /// an assigned person conflicts.
    pub(crate) is_admin: bool,
}

/// Change that is written with the claim. Receives the comments as read after posting the candidate,
/// and the token that the claim would have; returns the content to write into the claim,
/// or `None` if there is nothing to do after all.
pub(crate) type ClaimUpdate<'a> = dyn Fn(&View, Token) -> Option<UpdatedClaim> + Send + Sync + 'a;

pub(crate) struct UpdatedClaim {
    pub(crate) record: Record,
    /// Whether the claim is held from then on; otherwise it is released with the same edit.
    pub(crate) holds: bool,
}

/// Candidate comment that this client has posted.
struct Candidate {
    id: u64,
    /// Time until which the candidate has to become a lease.
    deadline: BootInstant,
    /// Remains of the claims that were cleared, if one of them contained a task.
    carried: Option<EndRecord>,
}

/// Maximum number of repeated reads while other candidates give way.
const MAX_READS: u32 = 7;
/// Maximum number of ended leases that are cleared at once.
const MAX_CLEARED: usize = 8;

impl Protocol {
    /// Acquires the lock, or returns the holders that conflict.
    pub(crate) async fn acquire(&self, attempt: &AcquireAttempt<'_>) -> Result<Outcome> {
        let issue = self.usable_issue(attempt).await?;
        let (sent, view) = (BootInstant::now(), self.read_cached(attempt.number).await?);
        for state in
            self.claim_states(&view).into_iter().filter(|state| state.belongs_to(&attempt.request.lease_id))
        {
            // A retry of the same request: its response was lost.
            if state.stage == ClaimStage::Held
                && let Some(lease) = self.extend(attempt.number, &view, &state, sent, None).await?
            {
                return Ok(Outcome::Granted(lease));
            }
            if state.stage != ClaimStage::Retained {
                self.remove_claim(attempt.number, &state).await?;
            }
        }
        let others = self.conflicting_claims(&view, attempt, None);
        let people = if attempt.is_admin { Vec::new() } else { self.assigned_people(&issue, &view) };
        if !others.is_empty() || !people.is_empty() {
            return Ok(Outcome::Conflict(conflict_with(&others, people, view.now)));
        }
        self.post_candidate(attempt, &issue).await
    }

    /// Posts the candidate, and removes it again unless it becomes a lease.
    async fn post_candidate(&self, attempt: &AcquireAttempt<'_>, issue: &Issue) -> Result<Outcome> {
        let deadline = BootInstant::now().plus(attempt.request.ttl.min(CANDIDATE_TTL).as_duration());
        let claim = Claim::new(attempt.name.as_str(), attempt.request);
        let content = CommentContent::Candidate(claim.clone()).render();
        let posted = match self.api.post_comment(attempt.number, &content).await {
            Ok(Some(posted)) => posted.value,
            Ok(None) => return Err(self.api.no_issue(attempt.number)),
            Err(error) => {
                // The comment may have been created nevertheless.
                self.withdraw_lost_candidate(attempt).await;
                return Err(error);
            }
        };
        if let Some(user) = &posted.user {
            self.set_own_login(&user.login);
        }
        let mut candidate = Candidate { id: posted.id, deadline, carried: None };
        let outcome = self.resolve_candidate(attempt, issue, claim, &mut candidate).await;
        if !matches!(outcome, Ok(Outcome::Granted(_))) {
            match candidate.carried {
                // Only this comment still contains what the candidate has cleared.
                Some(end_record) => self.record_cleared(candidate.id, end_record).await,
                None => self.delete_candidate(candidate.id).await,
            }
        }
        outcome
    }

    /// Reads all comments until no other claim conflicts with the candidate, clears ended claims, and
    /// turns the candidate into a lease.
    async fn resolve_candidate(
        &self,
        attempt: &AcquireAttempt<'_>,
        issue: &Issue,
        claim: Claim,
        candidate: &mut Candidate,
    ) -> Result<Outcome> {
        let mut reads = 0;
        let view = loop {
            let view = self.read_fresh(attempt.number).await?;
            // A list without this client's own candidate is stale, and proves nothing.
            let is_stale = !self.claim_states(&view).iter().any(|state| state.id == candidate.id);
            let others = self.conflicting_claims(&view, attempt, Some(candidate.id));
            if others.is_empty() && !is_stale {
                break view;
            }
            // A candidate gives way to holders, and to candidates with a lower id.
            let gives_way =
                others.iter().any(|other| other.stage != ClaimStage::Candidate || other.id < candidate.id);
            if gives_way || reads == MAX_READS {
                return Ok(Outcome::Conflict(conflict_with(&others, Vec::new(), view.now)));
            }
            self.api.backoff(reads).await;
            reads += 1;
        };
        match self.clear(attempt, issue, &view, candidate, &claim).await? {
            Cleared::Conflict(state) => Ok(Outcome::Conflict(conflict_with(&[*state], Vec::new(), view.now))),
            Cleared::All(took) => {
                let mut claim = claim;
                if attempt.update.is_none() {
                    claim.describe(issue, view.now);
                }
                self.promote_candidate(attempt, claim, &view, took, candidate).await
            }
        }
    }

    /// Clears ended claims before anything is granted, so that no late renewal can revive them.
    async fn clear(
        &self,
        attempt: &AcquireAttempt<'_>,
        issue: &Issue,
        view: &View,
        candidate: &mut Candidate,
        claim: &Claim,
    ) -> Result<Cleared> {
        let mut took = Vec::new();
        let newest = view.task();
        let ended = self
            .claim_states(view)
            .into_iter()
            .filter(|state| state.id != candidate.id && state.stage != ClaimStage::Retained);
        for state in ended.take(MAX_CLEARED) {
            // A list may be stale, so read the single comment again.
            let Some(fresh) = self.api.comment(state.id).await? else { continue };
            let fresh = View::new(fresh.now, vec![fresh.value], |comment| self.is_trusted(comment));
            if let Some(live) = self.conflicting_claims(&fresh, attempt, None).into_iter().next() {
                return Ok(Cleared::Conflict(Box::new(live)));
            }
            let is_expired = !state.conflicts(fresh.now, None);
            if let Some(task) = newest.filter(|newest| newest.id == state.id) {
                if fresh.task().is_none_or(|known| known.record != task.record) {
                    return Ok(Cleared::Conflict(Box::new(state))); // It has changed since the read.
                }
                // Delete only what is also written in another place.
                let record = if is_expired { task.record.clone() } else { task.record.ended(fresh.now) };
                let carried = Claim { token: view.token(), task: Some(Box::new(record)), ..claim.clone() };
                let end_record =
                    EndRecord { token: carried.token, took: Vec::new(), task: carried.task.clone() };
                let content = CommentContent::Candidate(carried).render();
                if self.api.edit_comment(candidate.id, &content).await?.is_none() {
                    return Err(candidate_lost(attempt.name, "its comment was deleted"));
                }
                candidate.carried = Some(end_record);
            }
            // Keep this client's own assignee, unless an update may not hold the lock.
            let keeps_assignee = self.is_own_login(&state.author) && attempt.update.is_none();
            if issue.is_assigned_to(&state.author) && !keeps_assignee {
                self.api.unassign(attempt.number, &[&state.author]).await?;
            }
            self.api.delete_comment(state.id).await?;
            if let (ClaimStage::Held, Some(claim)) = (state.stage, &state.claim) {
                let how = if is_expired { EndKind::Expired } else { EndKind::Stolen };
                let by = (how == EndKind::Stolen).then(|| attempt.request.holder.clone());
                tracing::warn!(lock = %attempt.name, holder = %claim.holder, ?how, "taking over a lease");
                took.push(EndedLease { by, ..claim.ended_lease(how, fresh.now) });
                if let Some(end_record) = &mut candidate.carried {
                    end_record.took.clone_from(&took);
                }
            }
        }
        Ok(Cleared::All(took))
    }

    /// Turns the candidate into a lease. Fails if the candidate may have ended before the response.
    async fn promote_candidate(
        &self,
        attempt: &AcquireAttempt<'_>,
        mut claim: Claim,
        view: &View,
        took: Vec<EndedLease>,
        candidate: &Candidate,
    ) -> Result<Outcome> {
        claim.token = view.token().next(view.now);
        claim.acquired_at = view.now;
        claim.took = took;
        claim.left_assigned = view.left_assigned().to_vec();
        claim.task = candidate.carried.as_ref().and_then(|end_record| end_record.task.clone());
        let mut holds = true;
        if let Some(update) = attempt.update {
            let Some(updated) = update(view, claim.token) else { return Ok(Outcome::Withdrawn) };
            // Claims and task records share one order, that of tokens.
            claim.token = claim.token.max(updated.record.token);
            (claim.task, holds) = (Some(Box::new(updated.record)), updated.holds);
        }
        let sent = BootInstant::now();
        let content =
            if holds { CommentContent::Held(claim.clone()) } else { CommentContent::Released(claim.clone()) };
        let edited = self.api.edit_comment(candidate.id, &content.render()).await?;
        let Some(Dated { value: comment, .. }) = edited else {
            return Err(candidate_lost(attempt.name, "its comment was deleted"));
        };
        if BootInstant::now() >= candidate.deadline {
            return Err(candidate_lost(attempt.name, "the response came too late"));
        }
        if !holds {
            return Ok(Outcome::Granted(claim.lease(comment.updated_at, None)));
        }
        let assigned = match self.assign_holder(attempt, view, candidate).await {
            Ok(assigned) => assigned,
            Err(conflict) => return Ok(Outcome::Conflict(conflict)),
        };
        let deadline = sent.plus(attempt.request.ttl.as_duration());
        self.record_lease(&attempt.request.lease_id, deadline, assigned, view);
        Ok(Outcome::Granted(claim.lease(comment.updated_at, None)))
    }

    /// Shows people the holder, as assignee. The response may show that another client or a person
    /// was first: then the lock is not acquired.
    async fn assign_holder(
        &self,
        attempt: &AcquireAttempt<'_>,
        view: &View,
        candidate: &Candidate,
    ) -> Result<Assigned, Conflict> {
        let Some(login) = self.own_login() else { return Ok(Assigned::Never) };
        let (issue, assigned) = self.assign(attempt.name.as_str(), attempt.number, login).await;
        let Some(issue) = issue else { return Ok(assigned) };
        let people = self.assigned_people(&issue, view);
        let mut others = Vec::new();
        // Another client has commented since the read, or the list was stale.
        if usize::try_from(issue.comments).is_ok_and(|count| count > view.count)
            && let Ok(view) = self.read_fresh(attempt.number).await
        {
            others = self.conflicting_claims(&view, attempt, Some(candidate.id));
            others.retain(|other| other.stage != ClaimStage::Candidate);
        }
        if others.is_empty() && people.is_empty() {
            return Ok(assigned);
        }
        if let Err(error) = self.api.unassign(attempt.number, &[login]).await {
            tracing::warn!(lock = %attempt.name, %error, "failed to remove an assignee");
        }
        Err(conflict_with(&others, people, view.now))
    }

    /// Returns the issue unless it is closed: then a person wants no more work on it.
    async fn usable_issue(&self, attempt: &AcquireAttempt<'_>) -> Result<Issue> {
        let number = attempt.number;
        let issue =
            self.api.issue(number, Read::IfChanged).await?.ok_or_else(|| self.api.no_issue(number))?;
        if issue.value.is_closed() && !attempt.is_admin {
            return Err(self.api.issue_closed(number));
        }
        Ok(issue.value)
    }

    fn conflicting_claims(
        &self,
        view: &View,
        attempt: &AcquireAttempt<'_>,
        candidate: Option<u64>,
    ) -> Vec<ClaimState> {
        let mut others = self.claim_states(view);
        others.retain(|other| {
            let is_own = Some(other.id) == candidate
                || (other.belongs_to(&attempt.request.lease_id) && other.stage != ClaimStage::Retained);
            !is_own && other.conflicts(view.now, attempt.steal_after)
        });
        others
    }

    /// Deletes a candidate whose response was lost; if it cannot be found, it expires.
    async fn withdraw_lost_candidate(&self, attempt: &AcquireAttempt<'_>) {
        let Ok(view) = self.read_fresh(attempt.number).await else { return };
        for state in
            self.claim_states(&view).into_iter().filter(|state| state.belongs_to(&attempt.request.lease_id))
        {
            if state.stage == ClaimStage::Candidate {
                self.delete_candidate(state.id).await;
            }
        }
    }

    /// Removes the claim of an earlier attempt of the same request. A task record in it moves to a new
    /// comment: late requests of that attempt may still change or delete the old one.
    async fn remove_claim(&self, number: u64, state: &ClaimState) -> Result<()> {
        if let Some(Claim { token, took, task: Some(task), .. }) = &state.claim {
            let end_record = EndRecord { token: *token, took: took.clone(), task: Some(task.clone()) };
            self.api.post_comment(number, &CommentContent::Ended(end_record).render()).await?;
        }
        self.delete_withdrawn(state.id).await
    }

    /// Writes the record of the task on this issue once more, if this client has withdrawn the comment that
    /// contains it: the withdrawal may still arrive, and would undo the last change of the task.
    pub(crate) async fn keep_record(&self, number: u64, view: &View) -> Result<()> {
        let withdrawn = view.task().filter(|known| known.held.is_none() && self.is_withdrawn(known.id));
        let Some(TaskRecord { token, record, .. }) = withdrawn else { return Ok(()) };
        let end_record = EndRecord { token, took: Vec::new(), task: Some(Box::new(record.clone())) };
        self.api.post_comment(number, &CommentContent::Ended(end_record).render()).await.map(drop)
    }

    /// Turns a candidate that did not become a lease into a record of what it has cleared.
    async fn record_cleared(&self, id: u64, end_record: EndRecord) {
        if let Err(error) = self.api.edit_comment(id, &CommentContent::Ended(end_record).render()).await {
            self.mark_withdrawn(id);
            tracing::warn!(comment = id, %error, "failed to withdraw a candidate; it expires by itself");
        }
    }

    async fn delete_candidate(&self, id: u64) {
        if let Err(error) = self.delete_withdrawn(id).await {
            tracing::warn!(comment = id, %error, "failed to withdraw a candidate; it expires by itself");
        }
    }

    /// Deletes a comment of this client. If that gets no response, no lease relies on the comment
    /// from then on, even if it was a lease already.
    async fn delete_withdrawn(&self, id: u64) -> Result<()> {
        self.api.delete_comment(id).await.inspect_err(|_| self.mark_withdrawn(id))?;
        self.forget_withdrawn(id);
        Ok(())
    }
}

/// Result of clearing ended claims.
enum Cleared {
    All(Vec<EndedLease>),
    /// A claim that has not ended after all.
    Conflict(Box<ClaimState>),
}

fn conflict_with(others: &[ClaimState], people: Vec<HeldBy>, now: Timestamp) -> Conflict {
    let holders = others.iter().map(ClaimState::held_by).chain(people).collect();
    Conflict { holders, waiters: 0, full: false, now: Some(now) }
}

fn candidate_lost(name: &LockName, reason: &str) -> Error {
    let message = format!("the claim for lock '{name}' was lost before it was granted: {reason}");
    Error::store(StoreErrorKind::Unavailable, message, "try again")
}
