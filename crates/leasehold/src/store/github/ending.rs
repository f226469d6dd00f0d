//! Renewing leases, releasing them, and ending them by force.

use super::answers::Comment;
use super::api::Dated;
use super::claim::{Asking, Claim, Ending, Gone, How, Says};
use super::protocol::Protocol;
use super::view::{Stage, Standing, View};
use crate::error::Result;
use crate::model::{
    ForceRelease, Lease, LeaseId, Outcome, Release, Renew, RequestRelease, Status, Swept, Ttl,
};
use crate::store::BootInstant;

/// Number of comments about the past that are kept: with them, a list still fits on one page.
const KEEP: usize = 80;
/// Maximum number of such comments that one release deletes.
const TIDY: usize = 2;
/// Uncertainty of a time in whole seconds.
const SECOND: Ttl = Ttl::from_secs(1);

impl Protocol {
    /// Renews a lease.
    pub(super) async fn renew(&self, number: u64, renew: &Renew) -> Result<Outcome> {
        let (sent, view) = (BootInstant::now(), self.look(number).await?);
        let Some(standing) =
            self.lease(&view, |claim| claim.lease_id == renew.lease_id && claim.token == renew.token)
        else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        match self.prolong(number, &view, &standing, sent, renew.ttl).await? {
            Some(lease) => Ok(Outcome::Renewed(lease)),
            None => {
                let view = self.look(number).await?;
                Ok(Outcome::NotHeld(view.not_held()))
            }
        }
    }

    /// Sends a heartbeat on a claim that was read by a request sent at `sent`. Returns `None` if
    /// the claim had ended, or may have ended before the heartbeat arrived: an ended claim is never
    /// revived.
    pub(super) async fn prolong(
        &self,
        number: u64,
        view: &View,
        standing: &Standing,
        sent: BootInstant,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>> {
        let Some(mut claim) = standing.claim.clone() else { return Ok(None) };
        let id = claim.lease_id;
        let assigned = self.assumed(&id, claim.beat);
        let deadline = self.deadline(&id, view, standing, sent);
        if view.now >= standing.ends || BootInstant::now() >= deadline {
            self.bury(number, view, standing).await?;
            return Ok(None);
        }
        // Always change the text: an edit that changes nothing may have no effect.
        claim.beat += 1;
        claim.ttl = ttl.unwrap_or(claim.ttl);
        claim.date_heartbeat(view.now);
        let sent = BootInstant::now();
        let edited = self.api.edit_comment(standing.id, &Says::Held(claim.clone()).write()).await;
        let Some(edited) = edited.inspect_err(|_| self.doubt(&id))? else {
            self.forget(&id);
            return Ok(None);
        };
        if BootInstant::now() >= deadline {
            self.bury(number, view, standing).await?;
            return Ok(None);
        }
        self.remember(&id, sent.plus(claim.ttl.as_duration()), assigned);
        self.repair_assignment(number, standing, &claim, deadline).await;
        let asked = view
            .asked(claim.token)
            .or_else(|| self.api.pace.asks_to_stop(self.leases(), claim.ttl, edited.now));
        Ok(Some(claim.lease(edited.what.updated_at, asked)))
    }

    /// Releases a lease.
    pub(super) async fn release(&self, number: u64, release: &Release) -> Result<Outcome> {
        let view = self.look(number).await?;
        let is_it = |claim: &Claim| claim.lease_id == release.lease_id && claim.token == release.token;
        if let Some(kept) = self.kept(&view, is_it) {
            return Ok(Outcome::Released(kept)); // A retry: the first response was lost.
        }
        let Some(standing) = self.lease(&view, is_it) else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        match self.give_back(number, &view, &standing, release.at_least).await? {
            Some(lease) => Ok(Outcome::Released(lease)),
            None => Ok(Outcome::NotHeld(view.not_held())),
        }
    }

    /// Withdraws a request, whatever its state.
    pub(super) async fn leave(&self, number: u64, id: &LeaseId) -> Result<Outcome> {
        let view = self.look(number).await?;
        for standing in self.standing(&view).into_iter().filter(|standing| standing.is_of(id)) {
            match standing.stage {
                Stage::Held => drop(self.give_back(number, &view, &standing, None).await?),
                Stage::Raised | Stage::Garbage => drop(self.api.delete_comment(standing.id).await?),
                Stage::Kept => {}
            }
        }
        Ok(Outcome::Left)
    }

    /// Requests the release of a lock from its holder, in a separate comment, because only the
    /// holder edits its claim.
    pub(super) async fn ask_release(&self, number: u64, ask: &RequestRelease) -> Result<Outcome> {
        let view = self.look(number).await?;
        let meant = |claim: &Claim| ask.token.is_none_or(|token| token == claim.token);
        let live = self.lease(&view, meant).filter(|standing| view.now < standing.ends);
        let Some(claim) = live.and_then(|standing| standing.claim) else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        let asking = Asking { token: claim.token, by: ask.by.clone(), reason: ask.reason.clone() };
        self.api.post_comment(number, &Says::Asked(asking).write()).await?;
        Ok(Outcome::Asked(1))
    }

    /// Takes a lock from its holder. The new comment ends the lease in one step; deleting the
    /// holder's comment is only cleanup.
    pub(super) async fn force_release(&self, number: u64, force: &ForceRelease) -> Result<Outcome> {
        let view = self.look(number).await?;
        let live =
            self.lease(&view, |claim| claim.token == force.token).filter(|standing| view.now < standing.ends);
        let Some((standing, claim)) =
            live.and_then(|standing| standing.claim.clone().map(|claim| (standing, claim)))
        else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        let gone = Gone {
            by: Some(force.by.clone()),
            reason: Some(force.reason.clone()),
            ..claim.gone(How::Forced, view.now)
        };
        let task = claim.task.clone().map(|task| Box::new(task.ended(view.now)));
        let ending = Ending { token: view.token().next(view.now), took: vec![gone], task };
        self.api.post_comment(number, &Says::Ended(ending).write()).await?;
        self.api.unassign(number, &[&standing.author]).await?;
        self.api.delete_comment(standing.id).await?;
        Ok(Outcome::Forced(claim.lease(standing.seen, view.asked(claim.token))))
    }

    /// Clears claims that have ended, and those of the leases in `dead`.
    pub(super) async fn sweep(&self, number: u64, dead: &[LeaseId]) -> Result<Swept> {
        let view = self.look(number).await?;
        let (mut swept, mut took) = (Swept::default(), Vec::new());
        for standing in self.standing(&view) {
            let is_dead = dead.iter().any(|id| standing.is_of(id)) && standing.stage != Stage::Kept;
            if standing.is_in_the_way(view.now, None) && !is_dead {
                continue;
            }
            // Keep a claim with a task's record: the client that leases or recovers the task takes
            // the record over.
            let is_task = standing.claim.as_ref().is_some_and(|claim| claim.task.is_some());
            if standing.stage == Stage::Kept || is_task {
                continue;
            }
            // Remove the assignee first: without the claim, nothing would show that the assignee
            // was a program.
            let lives =
                |other: &Standing| other.author == standing.author && other.is_in_the_way(view.now, None);
            if standing.stage == Stage::Held && !self.standing(&view).iter().any(lives) {
                self.api.unassign(number, &[&standing.author]).await?;
            }
            // Of two clients that sweep at once, only one deletes the comment.
            if self.api.delete_comment(standing.id).await?
                && let (Stage::Held, Some(claim)) = (standing.stage, &standing.claim)
            {
                took.push(claim.gone(How::Expired, view.now));
                swept.leases += 1;
            }
        }
        if !took.is_empty() {
            self.api
                .post_comment(number, &Says::Ended(Ending { token: view.token(), took, task: None }).write())
                .await?;
        }
        Ok(swept)
    }

    /// Returns the time until which a lease certainly lasts, according to a view that was read by a
    /// request sent at `sent`: by this process's own clock if the process has acquired the lease;
    /// otherwise by the service's clock, less a margin.
    pub(super) fn deadline(
        &self,
        id: &LeaseId,
        view: &View,
        standing: &Standing,
        sent: BootInstant,
    ) -> BootInstant {
        let left = standing.ends.since(view.now.plus(SECOND));
        self.mine(id).map_or_else(|| sent.plus(left), |mine| mine.deadline)
    }

    // --- shared helpers --------------------------------------------------------------------------

    /// Returns the held claim that `is_it` accepts.
    pub(super) fn lease(&self, view: &View, is_it: impl Fn(&Claim) -> bool) -> Option<Standing> {
        let held = |standing: &Standing| {
            standing.stage == Stage::Held && standing.claim.as_ref().is_some_and(&is_it)
        };
        self.standing(view).into_iter().find(held)
    }

    fn kept(&self, view: &View, is_it: impl Fn(&Claim) -> bool) -> Option<Lease> {
        let kept = self.standing(view).into_iter().filter(|standing| standing.stage == Stage::Kept);
        let mut kept = kept.filter(|standing| view.now < standing.ends);
        kept.find_map(|standing| standing.claim.filter(&is_it).map(|claim| claim.lease(standing.seen, None)))
    }

    /// Releases a claim; returns `None` if it had ended or was deleted. Removes the assignee first:
    /// if the process dies in between, the claim still shows that it had assigned the login.
    async fn give_back(
        &self,
        number: u64,
        view: &View,
        standing: &Standing,
        at_least: Option<Ttl>,
    ) -> Result<Option<Lease>> {
        let Some(mut claim) = standing.claim.clone() else { return Ok(None) };
        if view.now >= standing.ends {
            self.bury(number, view, standing).await?;
            return Ok(None);
        }
        self.unassign(number, view, standing, &mut claim).await;
        claim.until =
            at_least.map(|at_least| claim.acquired_at.plus(at_least)).filter(|until| view.now < *until);
        let before = claim.lease(standing.seen, view.asked(claim.token));
        let released = Says::Released(claim.clone()).write();
        let Some(edited) = self.write_over(number, standing, &claim.lease_id, &released).await? else {
            self.forget(&claim.lease_id);
            return Ok(None);
        };
        self.forget(&claim.lease_id);
        self.tidy(view).await;
        let kept = || Lease { status: Status::Released, ..claim.lease(edited.what.updated_at, None) };
        Ok(Some(if claim.until.is_some() { kept() } else { before }))
    }

    /// Ends a claim by replacing its content; returns `None` if its comment does not exist any
    /// more. If an earlier edit of the claim is in doubt, that edit may still arrive and mark the
    /// claim as held again: in this case the content goes into a new comment, and the claim's own
    /// comment is deleted.
    async fn write_over(
        &self,
        number: u64,
        standing: &Standing,
        id: &LeaseId,
        says: &str,
    ) -> Result<Option<Dated<Comment>>> {
        if !self.mine(id).is_some_and(|mine| mine.doubtful) {
            let edited = self.api.edit_comment(standing.id, says).await;
            return edited.inspect_err(|_| self.doubt(id));
        }
        let posted = self.api.post_comment(number, says).await?;
        let was_there = self.api.delete_comment(standing.id).await?;
        Ok(posted.filter(|_| was_there))
    }

    /// Marks a claim of this client as ended, because its time has elapsed or may have elapsed.
    async fn bury(&self, number: u64, view: &View, standing: &Standing) -> Result<()> {
        let (Some(claim), now) = (&standing.claim, view.now) else { return Ok(()) };
        // Remove the assignee first, unless another claim needs it: without the claim, the assignee
        // would look like a person.
        let needs = |other: &Standing| {
            other.id != standing.id && other.author == standing.author && other.is_in_the_way(now, None)
        };
        if !self.standing(view).iter().any(needs) {
            self.api.unassign(number, &[&standing.author]).await?;
        }
        let (took, task) = (vec![claim.gone(How::Expired, now)], claim.task.clone());
        let ending = Ending { token: claim.token, took, task };
        let ended = Says::Ended(ending).write();
        let written = self.write_over(number, standing, &claim.lease_id, &ended).await;
        self.forget(&claim.lease_id);
        written.map(drop)
    }

    /// Deletes old comments to bound the history.
    pub(super) async fn tidy(&self, view: &View) {
        for id in view.too_many(KEEP).into_iter().take(TIDY) {
            if let Err(error) = self.api.delete_comment(id).await {
                tracing::debug!(comment = id, %error, "an old comment could not be deleted");
                return;
            }
        }
    }
}
