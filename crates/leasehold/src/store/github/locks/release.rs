//! Renewing leases, releasing them, and ending them by force.

use super::claim::{Claim, CommentContent, EndKind, EndRecord, EndedLease, StopRequestComment};
use super::protocol::Protocol;
use super::view::{ClaimStage, ClaimState, View};
use crate::error::Result;
use crate::model::{
    ForceRelease, Lease, LeaseId, LeaseStatus, Outcome, Release, Renew, RequestRelease, Swept, Timestamp, Ttl,
};
use crate::store::BootInstant;
use crate::store::github::api::{Comment, Dated};

/// Number of comments about the past that are kept: with them, a list still fits on one page.
const MAX_HISTORY: usize = 80;
/// Maximum number of such comments that one release deletes.
const MAX_DELETED: usize = 2;
/// Uncertainty of a time in whole seconds.
const CLOCK_RESOLUTION: Ttl = Ttl::from_secs(1);

impl Protocol {
    pub(super) async fn renew(&self, number: u64, renew: &Renew) -> Result<Outcome> {
        let (sent, view) = (BootInstant::now(), self.read_fresh(number).await?);
        let Some(state) =
            self.held_claim(&view, |claim| claim.lease_id == renew.lease_id && claim.token == renew.token)
        else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        match self.extend(number, &view, &state, sent, renew.ttl).await? {
            Some(lease) => Ok(Outcome::Renewed(lease)),
            None => {
                let view = self.read_fresh(number).await?;
                Ok(Outcome::NotHeld(view.not_held()))
            }
        }
    }

    /// Sends a heartbeat on a claim that was read by a request sent at `sent`. Returns `None` if
    /// the claim had ended, or may have ended before the heartbeat arrived: an ended claim is never
    /// revived. The same holds for a claim that this client has withdrawn, even if it still exists.
    pub(crate) async fn extend(
        &self,
        number: u64,
        view: &View,
        state: &ClaimState,
        sent: BootInstant,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>> {
        let claim = state.claim.clone().filter(|_| !self.is_withdrawn(state.id));
        let Some(mut claim) = claim else { return Ok(None) };
        let id = claim.lease_id;
        let assigned = self.assumed_assignment(&id, claim.renewals);
        let deadline = self.deadline(&id, view, state, sent);
        if view.now >= state.expires_at || BootInstant::now() >= deadline {
            self.expire_claim(number, view, state).await?;
            return Ok(None);
        }
        // Always change the text: an edit that changes nothing may have no effect.
        claim.renewals += 1;
        claim.ttl = ttl.unwrap_or(claim.ttl);
        claim.date_heartbeat(view.now);
        let sent = BootInstant::now();
        let edited = self.api.edit_comment(state.id, &CommentContent::Held(claim.clone()).render()).await;
        let Some(edited) = edited.inspect_err(|_| self.mark_in_doubt(&id))? else {
            self.forget_lease(&id);
            return Ok(None);
        };
        if BootInstant::now() >= deadline {
            self.expire_claim(number, view, state).await?;
            return Ok(None);
        }
        self.record_renewal(&id, sent.plus(claim.ttl.as_duration()), assigned, view);
        self.repair_assignment(number, state, &claim, deadline).await;
        let requests = self.renewal_requests();
        let asked = view
            .release_request(claim.token)
            .or_else(|| self.api.rate_limiter.release_request(requests, claim.ttl, edited.now));
        Ok(Some(claim.lease(edited.value.updated_at, asked)))
    }

    pub(super) async fn release(&self, number: u64, release: &Release) -> Result<Outcome> {
        let view = self.read_fresh(number).await?;
        let matches = |claim: &Claim| claim.lease_id == release.lease_id && claim.token == release.token;
        if let Some(retained) = self.retained(&view, matches) {
            return Ok(Outcome::Released(retained)); // A retry: the first response was lost.
        }
        let Some(state) = self.held_claim(&view, matches) else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        match self.release_claim(number, &view, &state, release.at_least).await? {
            Some(lease) => Ok(Outcome::Released(lease)),
            None => Ok(Outcome::NotHeld(view.not_held())),
        }
    }

    /// Withdraws a request, whatever its state.
    pub(crate) async fn withdraw(&self, number: u64, id: &LeaseId) -> Result<Outcome> {
        let view = self.read_fresh(number).await?;
        for state in self.claim_states(&view).into_iter().filter(|state| state.belongs_to(id)) {
            match state.stage {
                ClaimStage::Held => drop(self.release_claim(number, &view, &state, None).await?),
                ClaimStage::Candidate | ClaimStage::Unreadable => {
                    self.api.delete_comment(state.id).await?;
                }
                ClaimStage::Retained => {}
            }
        }
        Ok(Outcome::Withdrawn)
    }

    /// Requests the release of a lock from its holder, in a separate comment, because only the
    /// holder edits its claim.
    pub(super) async fn request_release(&self, number: u64, request: &RequestRelease) -> Result<Outcome> {
        let view = self.read_fresh(number).await?;
        let matches = |claim: &Claim| request.token.is_none_or(|token| token == claim.token);
        let live = self.held_claim(&view, matches).filter(|state| view.now < state.expires_at);
        let Some(claim) = live.and_then(|state| state.claim) else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        let stop_request =
            StopRequestComment { token: claim.token, by: request.by.clone(), reason: request.reason.clone() };
        self.api.post_comment(number, &CommentContent::StopRequest(stop_request).render()).await?;
        Ok(Outcome::ReleaseRequested(1))
    }

    /// Takes a lock from its holder. The new comment ends the lease in one step; deleting the
    /// holder's comment is only cleanup.
    pub(super) async fn force_release(&self, number: u64, force: &ForceRelease) -> Result<Outcome> {
        let view = self.read_fresh(number).await?;
        let live = self
            .held_claim(&view, |claim| claim.token == force.token)
            .filter(|state| view.now < state.expires_at);
        let Some((state, claim)) = live.and_then(|state| state.claim.clone().map(|claim| (state, claim)))
        else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        let ended = EndedLease {
            by: Some(force.by.clone()),
            reason: Some(force.reason.clone()),
            ..claim.ended_lease(EndKind::Forced, view.now)
        };
        let task = claim.task.clone().map(|task| Box::new(task.ended(view.now)));
        let end_record = EndRecord { token: view.token().next(view.now), took: vec![ended], task };
        self.api.post_comment(number, &CommentContent::Ended(end_record).render()).await?;
        self.api.unassign(number, &[&state.author]).await?;
        self.api.delete_comment(state.id).await?;
        Ok(Outcome::Forced(claim.lease(state.last_heartbeat, view.release_request(claim.token))))
    }

    /// Clears claims that have ended, and those of the leases in `dead`.
    pub(crate) async fn sweep(&self, number: u64, dead: &[LeaseId]) -> Result<Swept> {
        let view = self.read_fresh(number).await?;
        let (mut swept, mut took) = (Swept::default(), Vec::new());
        let has_ended = |state: &ClaimState, now: Timestamp| {
            let is_dead = dead.iter().any(|id| state.belongs_to(id));
            // The client that leases or recovers a task takes its record over.
            let is_task = state.claim.as_ref().is_some_and(|claim| claim.task.is_some());
            (is_dead || !state.conflicts(now, None)) && state.stage != ClaimStage::Retained && !is_task
        };
        let mut ended = self.claim_states(&view);
        ended.retain(|state| has_ended(state, view.now));
        for state in ended {
            // A list may be stale, so read the single comment again.
            let Some(fresh) = self.api.comment(state.id).await? else { continue };
            let fresh = View::new(fresh.now, vec![fresh.value], |comment| self.is_trusted(comment));
            let Some(state) = self.claim_states(&fresh).into_iter().find(|state| has_ended(state, fresh.now))
            else {
                continue;
            };
            // Remove the assignee first: only the claim shows that the assignee is a program.
            let needs = |other: &ClaimState| other.author == state.author && other.conflicts(view.now, None);
            if state.stage == ClaimStage::Held && !self.claim_states(&view).iter().any(needs) {
                self.api.unassign(number, &[&state.author]).await?;
            }
            // Of two clients that sweep at once, only one deletes the comment.
            if self.api.delete_comment(state.id).await?
                && let (ClaimStage::Held, Some(claim)) = (state.stage, &state.claim)
            {
                took.push(claim.ended_lease(EndKind::Expired, view.now));
                swept.leases += 1;
            }
        }
        if !took.is_empty() {
            let end_record = EndRecord { token: view.token(), took, task: None };
            self.api.post_comment(number, &CommentContent::Ended(end_record).render()).await?;
        }
        Ok(swept)
    }

    /// Returns the time until which a lease certainly lasts, according to a view that was read by a
    /// request sent at `sent`: by this process's own clock if the process has acquired the lease;
    /// otherwise by the service's clock, less a margin.
    pub(crate) fn deadline(
        &self,
        id: &LeaseId,
        view: &View,
        state: &ClaimState,
        sent: BootInstant,
    ) -> BootInstant {
        let left = state.expires_at.since(view.now.plus(CLOCK_RESOLUTION));
        self.own_lease(id).map_or_else(|| sent.plus(left), |lease| lease.deadline)
    }

    pub(crate) fn held_claim(&self, view: &View, matches: impl Fn(&Claim) -> bool) -> Option<ClaimState> {
        let held = |state: &ClaimState| {
            state.stage == ClaimStage::Held && state.claim.as_ref().is_some_and(&matches)
        };
        self.claim_states(view).into_iter().find(held)
    }

    fn retained(&self, view: &View, matches: impl Fn(&Claim) -> bool) -> Option<Lease> {
        let retained =
            self.claim_states(view).into_iter().filter(|state| state.stage == ClaimStage::Retained);
        let mut retained = retained.filter(|state| view.now < state.expires_at);
        retained.find_map(|state| {
            state.claim.filter(&matches).map(|claim| claim.lease(state.last_heartbeat, None))
        })
    }

    /// Releases a claim; returns `None` if it had ended or was deleted. Removes the assignee first:
    /// if the process dies in between, the claim still shows that it had assigned the login.
    async fn release_claim(
        &self,
        number: u64,
        view: &View,
        state: &ClaimState,
        at_least: Option<Ttl>,
    ) -> Result<Option<Lease>> {
        let Some(mut claim) = state.claim.clone() else { return Ok(None) };
        if view.now >= state.expires_at {
            self.expire_claim(number, view, state).await?;
            return Ok(None);
        }
        self.unassign(number, view, state, &mut claim).await;
        claim.until =
            at_least.map(|at_least| claim.acquired_at.plus(at_least)).filter(|until| view.now < *until);
        let before = claim.lease(state.last_heartbeat, view.release_request(claim.token));
        let released = CommentContent::Released(claim.clone()).render();
        let in_doubt = self.may_be_edited_late(&claim.lease_id);
        let replaced = self.replace_claim(number, state, (&claim.lease_id, in_doubt), &released).await;
        let Some(edited) = replaced? else {
            self.forget_lease(&claim.lease_id);
            return Ok(None);
        };
        self.forget_lease(&claim.lease_id);
        self.delete_old_comments(view).await;
        let retained =
            || Lease { status: LeaseStatus::Released, ..claim.lease(edited.value.updated_at, None) };
        Ok(Some(if claim.until.is_some() { retained() } else { before }))
    }

    /// Ends a claim by replacing its content; returns `None` if its comment does not exist any
    /// more. If an earlier edit of the claim is in doubt (`in_doubt`), that edit may still arrive and mark
    /// the claim as held again: in this case the content goes into a new comment, and the claim's own
    /// comment is deleted.
    async fn replace_claim(
        &self,
        number: u64,
        state: &ClaimState,
        (id, in_doubt): (&LeaseId, bool),
        content: &str,
    ) -> Result<Option<Dated<Comment>>> {
        if !in_doubt {
            let edited = self.api.edit_comment(state.id, content).await;
            return edited.inspect_err(|_| self.mark_in_doubt(id));
        }
        let posted = self.api.post_comment(number, content).await?;
        let existed = self.api.delete_comment(state.id).await?;
        Ok(posted.filter(|_| existed))
    }

    /// Marks a claim of this client as ended, because its time has elapsed or may have elapsed.
    async fn expire_claim(&self, number: u64, view: &View, state: &ClaimState) -> Result<()> {
        let (Some(claim), now) = (&state.claim, view.now) else { return Ok(()) };
        // Remove the assignee first, unless another claim needs it: without the claim, the assignee
        // would look like a person.
        let needs = |other: &ClaimState| {
            other.id != state.id && other.author == state.author && other.conflicts(now, None)
        };
        if !self.claim_states(view).iter().any(needs) {
            self.api.unassign(number, &[&state.author]).await?;
        }
        let (took, task) = (vec![claim.ended_lease(EndKind::Expired, now)], claim.task.clone());
        let end_record = EndRecord { token: claim.token, took, task };
        let ended = CommentContent::Ended(end_record).render();
        let in_doubt = self.may_be_edited_late(&claim.lease_id);
        let written = self.replace_claim(number, state, (&claim.lease_id, in_doubt), &ended).await;
        self.forget_lease(&claim.lease_id);
        written.map(drop)
    }

    /// Deletes old comments to bound the history.
    pub(crate) async fn delete_old_comments(&self, view: &View) {
        for id in view.old_comments(MAX_HISTORY).into_iter().take(MAX_DELETED) {
            if let Err(error) = self.api.delete_comment(id).await {
                tracing::debug!(comment = id, %error, "failed to delete an old comment");
                return;
            }
        }
    }
}
