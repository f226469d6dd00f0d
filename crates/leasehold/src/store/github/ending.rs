//! Keeping a lock, giving it back, and taking it away.

use super::answers::Comment;
use super::api::Dated;
use super::claim::{Asking, Claim, Ending, Gone, How, Says};
use super::protocol::Protocol;
use super::view::{Stage, Standing, View};
use crate::error::Result;
use crate::model::{AskRelease, ForceRelease, Lease, LeaseId, Outcome, Release, Renew, Status, Swept, Ttl};
use crate::store::Moment;

/// So many comments that only tell of the past are kept: with them a list fits on one page.
const KEEP: usize = 80;
/// At most so many of them are deleted with one release.
const TIDY: usize = 2;
/// What a time in whole seconds leaves open.
const SECOND: Ttl = Ttl::from_secs(1);

impl Protocol {
    /// Holds it longer.
    pub(super) async fn renew(&self, number: u64, renew: &Renew) -> Result<Outcome> {
        let (sent, view) = (Moment::now(), self.look(number).await?);
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

    /// Shows a sign of life on a claim, seen in a look that was sent at `sent`. None if the claim was over, or may have
    /// been before the sign arrived: it is never brought back.
    pub(super) async fn prolong(
        &self,
        number: u64,
        view: &View,
        standing: &Standing,
        sent: Moment,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>> {
        let Some(mut claim) = standing.claim.clone() else { return Ok(None) };
        let id = claim.lease_id;
        let assigned = self.assumed(&id, claim.beat);
        let deadline = self.deadline(&id, view, standing, sent);
        if view.now >= standing.ends || Moment::now() >= deadline {
            self.bury(number, view, standing).await?;
            return Ok(None);
        }
        // Always another text: an edit that changes nothing may count for nothing.
        claim.beat += 1;
        claim.ttl = ttl.unwrap_or(claim.ttl);
        claim.date_heartbeat(view.now);
        let sent = Moment::now();
        let edited = self.api.edit_comment(standing.id, &Says::Held(claim.clone()).write()).await;
        let Some(edited) = edited.inspect_err(|_| self.doubt(&id))? else {
            self.forget(&id);
            return Ok(None);
        };
        if Moment::now() >= deadline {
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

    /// Gives it back.
    pub(super) async fn release(&self, number: u64, release: &Release) -> Result<Outcome> {
        let view = self.look(number).await?;
        let is_it = |claim: &Claim| claim.lease_id == release.lease_id && claim.token == release.token;
        if let Some(kept) = self.kept(&view, is_it) {
            return Ok(Outcome::Released(kept)); // Asked again because the first answer was lost.
        }
        let Some(standing) = self.lease(&view, is_it) else {
            return Ok(Outcome::NotHeld(view.not_held()));
        };
        match self.give_back(number, &view, &standing, release.at_least).await? {
            Some(lease) => Ok(Outcome::Released(lease)),
            None => Ok(Outcome::NotHeld(view.not_held())),
        }
    }

    /// Takes a request back, whatever became of it.
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

    /// Asks the holder to stop: in a comment of its own, since the holder's is the holder's to edit.
    pub(super) async fn ask_release(&self, number: u64, ask: &AskRelease) -> Result<Outcome> {
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

    /// Takes it from its holder. Said in one step: that the holder's comment then goes is tidiness.
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

    /// Clears away what has ended.
    pub(super) async fn sweep(&self, number: u64, dead: &[LeaseId]) -> Result<Swept> {
        let view = self.look(number).await?;
        let (mut swept, mut took) = (Swept::default(), Vec::new());
        for standing in self.standing(&view) {
            let is_dead = dead.iter().any(|id| standing.is_of(id)) && standing.stage != Stage::Kept;
            if standing.is_in_the_way(view.now, None) && !is_dead {
                continue;
            }
            // What is known of a task goes on with whoever takes it or recovers it.
            let is_task = standing.claim.as_ref().is_some_and(|claim| claim.task.is_some());
            if standing.stage == Stage::Kept || is_task {
                continue;
            }
            // The assignee goes first: after that, nothing would say that it was a program's.
            let lives =
                |other: &Standing| other.author == standing.author && other.is_in_the_way(view.now, None);
            if standing.stage == Stage::Held && !self.standing(&view).iter().any(lives) {
                self.api.unassign(number, &[&standing.author]).await?;
            }
            // Of two who sweep, one has deleted it.
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

    /// Until when a lease certainly lasts, seen in a look that was sent at `sent`: by its own clock if it was taken here; else by
    /// the service's, to be on the safe side.
    pub(super) fn deadline(&self, id: &LeaseId, view: &View, standing: &Standing, sent: Moment) -> Moment {
        let left = standing.ends.since(view.now.plus(SECOND));
        self.mine(id).map_or_else(|| sent.plus(left), |mine| mine.deadline)
    }

    // --- what they share ----------------------------------------------------------------------------------------

    /// The claim that is held and is meant.
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

    /// The assignee goes first: if we die in between, the claim still says that the assignment was ours.
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

    /// Ends a claim by what it says from now on; none if it is not there any more. If an edit of it was never answered, that
    /// edit may still arrive and say again that the claim is held: then another comment says it, and the claim's own goes.
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

    /// A claim of ours that is over, or that nobody can be sure of, says so from now on.
    async fn bury(&self, number: u64, view: &View, standing: &Standing) -> Result<()> {
        let (Some(claim), now) = (&standing.claim, view.now) else { return Ok(()) };
        // The assignee goes first: without the claim it would look like a person. Unless another claim needs it.
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

    /// Bounds the history.
    pub(super) async fn tidy(&self, view: &View) {
        for id in view.too_many(KEEP).into_iter().take(TIDY) {
            if let Err(error) = self.api.delete_comment(id).await {
                tracing::debug!(comment = id, %error, "an old comment could not be deleted");
                return;
            }
        }
    }
}
