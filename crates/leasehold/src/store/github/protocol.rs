//! Acquiring a lock: a client posts a candidate comment (a *flag*), then reads all comments. A
//! holder has read them after posting its candidate, and its comment stays for as long as it holds
//! the lock; so of two clients, the later one has seen the comment of the earlier one. This needs
//! neither ordered ids nor clocks that agree.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::answers::{Comment, Issue, User};
use super::api::{Api, Dated, Read};
use super::assignment::Assigned;
use super::claim::{Claim, Ending, Gone, How, Says};
use super::issues::{Issues, pause};
use super::tasks::Record;
use super::trouble;
use super::view::{RAISED, Stage, Standing, View, conflict};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Ask, Conflict, HeldBy, Holder, Lease, LeaseId, LockName, Mode, Outcome, Timestamp, Token, Ttl,
};
use crate::store::BootInstant;

/// Client of a repository.
pub(super) struct Protocol {
    pub(super) api: Api,
    pub(super) issues: Issues,
    /// Own login, which GitHub returns with the client's first comment.
    me: OnceLock<String>,
    /// Leases that this process has acquired.
    held: Mutex<HashMap<LeaseId, Mine>>,
    /// Whether the log already contains the warning that GitHub does not assign this login.
    pub(super) warned: AtomicBool,
}

/// Lease that this process has acquired.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mine {
    /// End of the lease by this process's own clock, counted from before the request was sent.
    pub(super) deadline: BootInstant,
    /// Whether an edit of the claim is in doubt: it was never answered, and may still take effect.
    pub(super) doubtful: bool,
    /// Whether the holder is shown as assignee.
    pub(super) assigned: Assigned,
}

/// Attempt to acquire a lock.
pub(super) struct Wish<'a> {
    pub(super) name: &'a LockName,
    pub(super) number: u64,
    pub(super) ask: &'a Arc<Ask>,
    pub(super) steal_after: Option<Ttl>,
    /// Purpose of the attempt, if the lock is not only to be held.
    pub(super) errand: Option<&'a Errand<'a>>,
    /// Whether the caller changes something without working on it: then neither a closed issue nor
    /// an assigned person conflicts.
    pub(super) by_hand: bool,
}

/// Purpose of an attempt to acquire a lock. Receives the comments as read after posting the
/// candidate, and the token that the claim would have; returns the content to write into the claim,
/// or `None` if there is nothing to do after all.
pub(super) type Errand<'a> = dyn Fn(&View, Token) -> Option<Written> + Send + Sync + 'a;

/// Content that an errand writes into its claim.
pub(super) struct Written {
    pub(super) record: Record,
    /// Whether the claim is held from then on; otherwise it is released with the same edit.
    pub(super) holds: bool,
}

/// Candidate comment that this client has posted.
struct Flag {
    id: u64,
    /// Time until which the candidate has to become a lease.
    deadline: BootInstant,
    /// Remains of the claims that were cleared, if one of them contained a task.
    carries: Option<Ending>,
}

/// Maximum number of repeated reads while other candidates give way.
const LOOKS: u32 = 7;
/// Maximum number of ended leases that are cleared at once.
const MAX_CLEARED: usize = 8;
/// Author associations whose comments count.
const INSIDERS: [&str; 3] = ["OWNER", "MEMBER", "COLLABORATOR"];

impl Protocol {
    pub(super) fn new(api: Api) -> Self {
        let (me, held, warned) = (OnceLock::new(), Mutex::default(), AtomicBool::new(false));
        Self { api, issues: Issues::default(), me, held, warned }
    }

    /// Acquires the lock, or returns the holders that conflict.
    pub(super) async fn acquire(&self, wish: &Wish<'_>) -> Result<Outcome> {
        let issue = self.gate(wish).await?;
        let (sent, view) = (BootInstant::now(), self.glance(wish.number).await?);
        for standing in self.standing(&view).into_iter().filter(|standing| standing.is_of(&wish.ask.lease_id))
        {
            // A retry of the same request: its response was lost.
            if standing.stage == Stage::Held
                && let Some(lease) = self.prolong(wish.number, &view, &standing, sent, None).await?
            {
                return Ok(Outcome::Granted(lease));
            }
            if standing.stage != Stage::Kept {
                self.api.delete_comment(standing.id).await?;
            }
        }
        let (others, people) = (self.others(&view, wish, None), self.people_against(wish, &issue, &view));
        if !others.is_empty() || !people.is_empty() {
            return Ok(Outcome::Conflict(in_the_way(&others, people, view.now)));
        }
        self.raise(wish, &issue).await
    }

    /// Posts the candidate, and removes it again unless it becomes a lease.
    async fn raise(&self, wish: &Wish<'_>, issue: &Issue) -> Result<Outcome> {
        let deadline = BootInstant::now().plus(wish.ask.ttl.min(RAISED).as_duration());
        let claim = Claim::new(wish.name.as_str(), wish.ask);
        let posted = match self.api.post_comment(wish.number, &Says::Raised(claim.clone()).write()).await {
            Ok(Some(posted)) => posted.what,
            Ok(None) => return Err(trouble::no_issue(&self.api.repository(), wish.number)),
            Err(error) => {
                // The comment may have been created nevertheless.
                self.take_back(wish).await;
                return Err(error);
            }
        };
        if let Some(user) = &posted.user {
            self.learn_me(&user.login);
        }
        let mut flag = Flag { id: posted.id, deadline, carries: None };
        let outcome = self.look_and_take(wish, issue, claim, &mut flag).await;
        if !matches!(outcome, Ok(Outcome::Granted(_))) {
            match flag.carries {
                // Only this comment still contains what the candidate has cleared.
                Some(ending) => self.leave_ending(flag.id, ending).await,
                None => self.drop_flag(flag.id).await,
            }
        }
        outcome
    }

    async fn look_and_take(
        &self,
        wish: &Wish<'_>,
        issue: &Issue,
        claim: Claim,
        flag: &mut Flag,
    ) -> Result<Outcome> {
        let mut again = 0;
        let view = loop {
            let view = self.look(wish.number).await?;
            // A list without this client's own candidate is stale, and proves nothing.
            let is_old = !self.standing(&view).iter().any(|standing| standing.id == flag.id);
            let others = self.others(&view, wish, Some(flag.id));
            if others.is_empty() && !is_old {
                break view;
            }
            // The candidate with the lowest id waits for the other candidates to give way; a holder
            // does not give way.
            let gives_way = others.iter().any(|other| other.stage != Stage::Raised || other.id < flag.id);
            if gives_way || again == LOOKS {
                return Ok(Outcome::Conflict(in_the_way(&others, Vec::new(), view.now)));
            }
            pause(&self.api, again).await;
            again += 1;
        };
        match self.clear(wish, issue, &view, flag, &claim).await? {
            Cleared::InTheWay(standing) => {
                Ok(Outcome::Conflict(in_the_way(&[*standing], Vec::new(), view.now)))
            }
            Cleared::Away(took) => {
                let mut claim = claim;
                if wish.errand.is_none() {
                    claim.describe(issue, view.now);
                }
                self.take(wish, claim, &view, took, flag).await
            }
        }
    }

    /// Clears ended claims before anything is granted: from then on, no late renewal can revive
    /// them.
    async fn clear(
        &self,
        wish: &Wish<'_>,
        issue: &Issue,
        view: &View,
        flag: &mut Flag,
        claim: &Claim,
    ) -> Result<Cleared> {
        let mut took = Vec::new();
        let newest = view.task();
        let over = self
            .standing(view)
            .into_iter()
            .filter(|standing| standing.id != flag.id && standing.stage != Stage::Kept);
        for standing in over.take(MAX_CLEARED) {
            // A list may be stale, so read the single comment again.
            let Some(fresh) = self.api.comment(standing.id).await? else { continue };
            let fresh = View::new(fresh.now, vec![fresh.what], |comment| self.is_trusted(comment));
            if let Some(alive) = self.others(&fresh, wish, None).into_iter().next() {
                return Ok(Cleared::InTheWay(Box::new(alive)));
            }
            let is_over = !standing.is_in_the_way(fresh.now, None);
            if let Some(task) = newest.filter(|newest| newest.id == standing.id) {
                if fresh.task().is_none_or(|known| known.record != task.record) {
                    return Ok(Cleared::InTheWay(Box::new(standing))); // It has changed since the read.
                }
                // Delete only what is also written in another place.
                let record = if is_over { task.record.clone() } else { task.record.ended(fresh.now) };
                let carried = Claim { token: view.token(), task: Some(Box::new(record)), ..claim.clone() };
                let ending = Ending { token: carried.token, took: Vec::new(), task: carried.task.clone() };
                if self.api.edit_comment(flag.id, &Says::Raised(carried).write()).await?.is_none() {
                    return Err(lost_flag(wish.name, "somebody has deleted it"));
                }
                flag.carries = Some(ending);
            }
            // Keep this client's own assignee, unless the attempt is for an errand that may not
            // hold the lock.
            let stays = self.is_me(&standing.author) && wish.errand.is_none();
            if issue.is_assigned_to(&standing.author) && !stays {
                self.api.unassign(wish.number, &[&standing.author]).await?;
            }
            self.api.delete_comment(standing.id).await?;
            if let (Stage::Held, Some(claim)) = (standing.stage, &standing.claim) {
                let how = if is_over { How::Expired } else { How::Stolen };
                let by = (how == How::Stolen).then(|| wish.ask.holder.clone());
                tracing::warn!(lock = %wish.name, holder = %claim.holder, ?how, "a lease is taken over");
                took.push(Gone { by, ..claim.gone(how, fresh.now) });
                if let Some(ending) = &mut flag.carries {
                    ending.took.clone_from(&took);
                }
            }
        }
        Ok(Cleared::Away(took))
    }

    /// Turns the candidate into a lease. Fails if the response arrives after the candidate may have
    /// ended.
    async fn take(
        &self,
        wish: &Wish<'_>,
        mut claim: Claim,
        view: &View,
        took: Vec<Gone>,
        flag: &Flag,
    ) -> Result<Outcome> {
        claim.token = view.token().next(view.now);
        claim.acquired_at = view.now;
        claim.took = took;
        claim.left_assigned = view.left_assigned().to_vec();
        claim.task = flag.carries.as_ref().and_then(|ending| ending.task.clone());
        let mut holds = true;
        if let Some(errand) = wish.errand {
            let Some(written) = errand(view, claim.token) else { return Ok(Outcome::Left) };
            // Claims and task records share one order, that of tokens.
            claim.token = claim.token.max(written.record.token);
            (claim.task, holds) = (Some(Box::new(written.record)), written.holds);
        }
        let sent = BootInstant::now();
        let says = if holds { Says::Held(claim.clone()) } else { Says::Released(claim.clone()) };
        let taken = self.api.edit_comment(flag.id, &says.write()).await?;
        let Some(Dated { what: taken, .. }) = taken else {
            return Err(lost_flag(wish.name, "somebody has deleted it"));
        };
        if BootInstant::now() >= flag.deadline {
            return Err(lost_flag(wish.name, "it took too long"));
        }
        if !holds {
            return Ok(Outcome::Granted(claim.lease(taken.updated_at, None)));
        }
        let assigned = match self.mark(wish, view, flag).await {
            Ok(assigned) => assigned,
            Err(conflict) => return Ok(Outcome::Conflict(conflict)),
        };
        self.remember(&wish.ask.lease_id, sent.plus(wish.ask.ttl.as_duration()), assigned);
        Ok(Outcome::Granted(claim.lease(taken.updated_at, None)))
    }

    /// Shows people the holder, as assignee. The response may show that another client or a person
    /// was first: then the lock is not acquired.
    async fn mark(&self, wish: &Wish<'_>, view: &View, flag: &Flag) -> Result<Assigned, Conflict> {
        let Some(me) = self.me.get() else { return Ok(Assigned::Never) };
        let (issue, assigned) = self.assign(wish.name.as_str(), wish.number, me).await;
        let Some(issue) = issue else { return Ok(assigned) };
        let people = self.people(&issue, view);
        let mut others = Vec::new();
        // Another client has commented since the read, or the list was stale.
        if usize::try_from(issue.comments).is_ok_and(|count| count > view.count)
            && let Ok(view) = self.look(wish.number).await
        {
            others = self.others(&view, wish, Some(flag.id));
            others.retain(|other| other.stage != Stage::Raised);
        }
        if others.is_empty() && people.is_empty() {
            return Ok(assigned);
        }
        if let Err(error) = self.api.unassign(wish.number, &[me]).await {
            tracing::warn!(lock = %wish.name, %error, "an assignment could not be taken back");
        }
        Err(in_the_way(&others, people, view.now))
    }

    // --- shared helpers --------------------------------------------------------------------------

    /// Returns the issue if it may be used. A closed issue means that a person wants no more work
    /// on it.
    async fn gate(&self, wish: &Wish<'_>) -> Result<Issue> {
        let number = wish.number;
        let issue = self
            .api
            .issue(number, Read::IfChanged)
            .await?
            .ok_or_else(|| trouble::no_issue(&self.api.repository(), number))?;
        if issue.what.is_closed() && !wish.by_hand {
            return Err(trouble::closed(&self.api.repository(), number));
        }
        Ok(issue.what)
    }

    /// Returns the people that conflict with an attempt; none if the attempt is `by_hand`.
    fn people_against(&self, wish: &Wish<'_>, issue: &Issue, view: &View) -> Vec<HeldBy> {
        if wish.by_hand { Vec::new() } else { self.people(issue, view) }
    }

    /// Reads all comments from the server, never from the cache.
    pub(super) async fn look(&self, number: u64) -> Result<View> {
        self.view(number, Read::Anew).await
    }

    /// Reads all comments with a conditional request; only for deciding whether a candidate is
    /// worth posting, and for display.
    pub(super) async fn glance(&self, number: u64) -> Result<View> {
        self.view(number, Read::IfChanged).await
    }

    async fn view(&self, number: u64, read: Read) -> Result<View> {
        let listed = self.api.comments(number, read).await?;
        let listed = listed.ok_or_else(|| trouble::no_issue(&self.api.repository(), number))?;
        Ok(View::new(listed.now, listed.what, |comment| self.is_trusted(comment)))
    }

    pub(super) fn standing(&self, view: &View) -> Vec<Standing> {
        view.standing(self.api.options.ttl)
    }

    /// Returns the claims that conflict with an attempt.
    fn others(&self, view: &View, wish: &Wish<'_>, flag: Option<u64>) -> Vec<Standing> {
        let mut others = self.standing(view);
        others.retain(|other| {
            let mine =
                Some(other.id) == flag || (other.is_of(&wish.ask.lease_id) && other.stage != Stage::Kept);
            !mine && other.is_in_the_way(view.now, wish.steal_after)
        });
        others
    }

    /// Returns the people who have assigned themselves. A login with a standing claim is a program,
    /// which that claim has assigned.
    pub(super) fn people(&self, issue: &Issue, view: &View) -> Vec<HeldBy> {
        let standing = self.standing(view);
        let is_worker = |login: &str| {
            self.is_me(login)
                || self.is_worker(login)
                || standing.iter().any(|standing| standing.author.eq_ignore_ascii_case(login))
                || view.left_assigned().iter().any(|left| left.eq_ignore_ascii_case(login))
        };
        let people = issue.assigned().filter(|user| !user.is_bot() && !is_worker(&user.login));
        people.map(|user| person(&user.login, issue.updated_at)).collect()
    }

    pub(super) fn is_trusted(&self, comment: &Comment) -> bool {
        self.is_one_of_us(comment.user.as_ref(), comment.author_association.as_deref())
    }

    /// Whether content by this author, with this role, counts.
    pub(super) fn is_one_of_us(&self, author: Option<&User>, role: Option<&str>) -> bool {
        role.is_some_and(|role| INSIDERS.contains(&role))
            || author.is_some_and(|user| {
                self.is_worker(&user.login)
                    || self.is_me(&user.login)
                    || (self.me.get().is_none() && self.api.may_be_me(user))
            })
    }

    fn is_worker(&self, login: &str) -> bool {
        self.api.options.workers.iter().any(|worker| worker.eq_ignore_ascii_case(login))
    }

    /// Whether this login is known to run programs on this issue.
    pub(super) fn is_program(&self, login: &str, view: &View) -> bool {
        self.is_me(login) || self.is_worker(login) || view.is_author(login)
    }

    pub(super) fn is_me(&self, login: &str) -> bool {
        self.me.get().is_some_and(|me| me.eq_ignore_ascii_case(login))
    }

    /// Finds a candidate whose response was lost, and deletes it. A candidate that cannot be found
    /// expires.
    async fn take_back(&self, wish: &Wish<'_>) {
        let Ok(view) = self.look(wish.number).await else { return };
        for standing in self.standing(&view).into_iter().filter(|standing| standing.is_of(&wish.ask.lease_id))
        {
            if standing.stage == Stage::Raised {
                self.drop_flag(standing.id).await;
            }
        }
    }

    /// Turns a candidate that did not become a lease into a record of what it has cleared.
    async fn leave_ending(&self, id: u64, ending: Ending) {
        if let Err(error) = self.api.edit_comment(id, &Says::Ended(ending).write()).await {
            tracing::warn!(comment = id, %error, "a claim could not be taken back; it ends by itself");
        }
    }

    async fn drop_flag(&self, id: u64) {
        if let Err(error) = self.api.delete_comment(id).await {
            tracing::warn!(comment = id, %error, "a claim could not be taken back; it ends by itself");
        }
    }

    pub(super) fn remember(&self, id: &LeaseId, deadline: BootInstant, assigned: Assigned) {
        let mut held = self.held();
        let now = BootInstant::now();
        held.retain(|_, mine| now < mine.deadline);
        let doubtful = held.get(id).is_some_and(|mine| mine.doubtful);
        held.insert(*id, Mine { deadline, doubtful, assigned });
    }

    /// Records the result of another attempt to assign the holder of a lease.
    pub(super) fn set_assigned(&self, id: &LeaseId, assigned: Assigned) {
        if let Some(mine) = self.held().get_mut(id) {
            mine.assigned = assigned;
        }
    }

    /// Records that an edit of this claim was not answered.
    pub(super) fn doubt(&self, id: &LeaseId) {
        if let Some(mine) = self.held().get_mut(id) {
            mine.doubtful = true;
        }
    }

    /// Records the own login.
    pub(super) fn learn_me(&self, login: &str) {
        self.me.get_or_init(|| login.to_owned());
    }

    pub(super) fn forget(&self, id: &LeaseId) {
        self.held().remove(id);
    }

    pub(super) fn mine(&self, id: &LeaseId) -> Option<Mine> {
        self.held().get(id).copied()
    }

    /// Returns the number of leases that this process holds.
    pub(super) fn leases(&self) -> u64 {
        self.held().len() as u64
    }

    fn held(&self) -> MutexGuard<'_, HashMap<LeaseId, Mine>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of clearing ended claims.
enum Cleared {
    Away(Vec<Gone>),
    /// A claim that has not ended after all.
    InTheWay(Box<Standing>),
}

fn in_the_way(others: &[Standing], people: Vec<HeldBy>, now: Timestamp) -> Conflict {
    conflict(others.iter().map(Standing::held_by).chain(people).collect(), now)
}

/// Returns a person as a holder, whose lease lasts until the assignment is removed.
pub(super) fn person(login: &str, since: Timestamp) -> HeldBy {
    let holder = Holder::new(format!("@{login}, who is assigned")).expect("logins are short");
    let until = Timestamp::from_micros(u64::MAX);
    HeldBy { holder, lease: None, mode: Mode::Exclusive, token: Token::default(), since, until }
}

fn lost_flag(name: &LockName, why: &str) -> Error {
    let message = format!("the claim for lock '{name}' was lost before it was granted: {why}");
    Error::store(StoreErrorKind::Unavailable, message, "try again")
}

/// Returns the lease of a person, for display.
pub(super) fn lease_of(person: HeldBy) -> Lease {
    let ask = Ask {
        lease_id: LeaseId::from_uuid(uuid::Uuid::nil()),
        holder: person.holder,
        mode: Mode::Exclusive,
        slots: crate::model::Slots::default(),
        priority: crate::model::Priority::default(),
        ttl: Ttl::MAX,
        metadata: crate::model::Metadata::default(),
        process: None,
    };
    Lease {
        ask: Arc::new(ask),
        token: person.token,
        acquired_at: person.since,
        renewed_at: person.since,
        expires_at: person.until,
        renewals: 0,
        status: crate::model::Status::Active,
        asked: None,
        took_over: None,
    }
}
