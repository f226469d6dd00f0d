//! State that the calls of the comment protocol share: the API client, the own login, the leases of
//! this process, and whose comments count.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use super::claim::exclusive_request;
use super::issues::Issues;
use super::view::{ClaimState, View};
use crate::error::Result;
use crate::model::{HeldBy, Holder, Lease, LeaseId, LeaseStatus, Metadata, Mode, Timestamp, Token, Ttl};
use crate::store::BootInstant;
use crate::store::github::api::{Api, Comment, Issue, Read, User};
use crate::store::support::mutex::lock;

pub(crate) struct Protocol {
    pub(crate) api: Api,
    pub(super) issues: Issues,
    /// Own login, which GitHub returns with the client's first comment.
    own_login: OnceLock<String>,
    own_leases: Mutex<HashMap<LeaseId, OwnLease>>,
    /// Comments of this process whose withdrawal got no response: it may still arrive at any time,
    /// so no lease may rely on them.
    withdrawn: Mutex<HashSet<u64>>,
    /// Whether the log already contains the warning that GitHub does not assign this login.
    pub(super) warned: AtomicBool,
}

/// Lease that this process has acquired.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnLease {
    /// End of the lease by this process's own clock, counted from before the request was sent.
    pub(super) deadline: BootInstant,
    /// Whether an edit of the claim is in doubt: it was never answered, and may still take effect.
    pub(crate) in_doubt: bool,
    /// Whether the holder is shown as assignee.
    pub(super) assigned: Assigned,
    /// Number of requests of a renewal.
    requests: u64,
}

/// Assignment of a lease's holder to the issue, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Assigned {
    /// The holder was assigned. If a person removes the assignment, no client restores it.
    Yes,
    /// `attempts` attempts have failed; the renewal with the number `next` makes the next one.
    Failed { attempts: u32, next: u64 },
    /// GitHub does not assign this login, or too many attempts have failed.
    Never,
}

/// Maximum number of attempts per lease. The number of renewals between two attempts doubles.
const MAX_ATTEMPTS: u32 = 8;

impl Assigned {
    /// Returns the state after one more failed attempt, by the renewal with this number.
    pub(super) fn after_failure(self, renewals: u64) -> Self {
        match self {
            Self::Failed { attempts, .. } if attempts + 1 < MAX_ATTEMPTS => {
                Self::Failed { attempts: attempts + 1, next: renewals + (1 << attempts) }
            }
            Self::Failed { .. } | Self::Never => Self::Never,
            Self::Yes => Self::Yes,
        }
    }

    /// Whether this process has made no attempt yet.
    pub(super) const fn is_unknown(self) -> bool {
        matches!(self, Self::Failed { attempts: 0, .. })
    }
}

impl Protocol {
    pub(crate) fn new(api: Api) -> Self {
        Self {
            api,
            issues: Issues::default(),
            own_login: OnceLock::new(),
            own_leases: Mutex::default(),
            withdrawn: Mutex::default(),
            warned: AtomicBool::new(false),
        }
    }

    /// Reads all comments from the server, never from the cache.
    pub(crate) async fn read_fresh(&self, number: u64) -> Result<View> {
        self.view(number, Read::Fresh).await
    }

    /// Reads all comments with a conditional request; only for deciding whether a candidate is
    /// worth posting, and for display.
    pub(super) async fn read_cached(&self, number: u64) -> Result<View> {
        self.view(number, Read::IfChanged).await
    }

    async fn view(&self, number: u64, read: Read) -> Result<View> {
        let listed = self.api.comments(number, read).await?;
        let listed = listed.ok_or_else(|| self.api.no_issue(number))?;
        Ok(View::new(listed.now, listed.value, |comment| self.is_trusted(comment)))
    }

    pub(super) fn claim_states(&self, view: &View) -> Vec<ClaimState> {
        view.claim_states(self.api.options.ttl)
    }

    /// Returns the people who have assigned themselves. A login with a claim is a program,
    /// which that claim has assigned.
    pub(super) fn assigned_people(&self, issue: &Issue, view: &View) -> Vec<HeldBy> {
        let states = self.claim_states(view);
        let is_worker = |login: &str| {
            self.is_own_login(login)
                || self.api.is_listed_worker(login)
                || states.iter().any(|state| state.author.eq_ignore_ascii_case(login))
                || view.left_assigned().iter().any(|left| left.eq_ignore_ascii_case(login))
        };
        let people = issue.assigned().filter(|user| !user.is_bot() && !is_worker(&user.login));
        people.map(|user| person_holder(&user.login, issue.updated_at)).collect()
    }

    pub(super) fn is_trusted(&self, comment: &Comment) -> bool {
        self.is_trusted_author(comment.user.as_ref(), comment.author_association.as_deref())
    }

    pub(crate) fn is_trusted_author(&self, author: Option<&User>, role: Option<&str>) -> bool {
        self.api.is_trusted(author, role, self.own_login())
    }

    /// Whether this login is known to run programs on this issue.
    pub(super) fn is_program(&self, login: &str, view: &View) -> bool {
        self.is_own_login(login) || self.api.is_listed_worker(login) || view.is_author(login)
    }

    pub(super) fn is_own_login(&self, login: &str) -> bool {
        self.own_login().is_some_and(|own| own.eq_ignore_ascii_case(login))
    }

    /// Records a lease that this process has acquired, on an issue with these comments.
    pub(super) fn record_lease(&self, id: &LeaseId, deadline: BootInstant, assigned: Assigned, view: &View) {
        self.insert_lease(id, deadline, assigned, view, false);
    }

    /// Records a lease that this process has renewed. Another process may have sent an edit of its claim that
    /// still arrives, unless this process has acquired it.
    pub(super) fn record_renewal(
        &self,
        id: &LeaseId,
        deadline: BootInstant,
        assigned: Assigned,
        view: &View,
    ) {
        self.insert_lease(id, deadline, assigned, view, true);
    }

    fn insert_lease(
        &self,
        id: &LeaseId,
        deadline: BootInstant,
        assigned: Assigned,
        view: &View,
        in_doubt_if_new: bool,
    ) {
        let mut leases = lock(&self.own_leases);
        let now = BootInstant::now();
        leases.retain(|_, lease| now < lease.deadline);
        let in_doubt = leases.get(id).map_or(in_doubt_if_new, |lease| lease.in_doubt);
        leases.insert(*id, OwnLease { deadline, in_doubt, assigned, requests: view.renewal_requests() });
    }

    /// Records the result of another attempt to assign the holder of a lease.
    pub(super) fn set_assigned(&self, id: &LeaseId, assigned: Assigned) {
        if let Some(lease) = lock(&self.own_leases).get_mut(id) {
            lease.assigned = assigned;
        }
    }

    /// Records that an edit of this claim was not answered.
    pub(crate) fn mark_in_doubt(&self, id: &LeaseId) {
        if let Some(lease) = lock(&self.own_leases).get_mut(id) {
            lease.in_doubt = true;
        }
    }

    /// Whether an edit of this claim may still arrive: one of this process was not answered, or another process
    /// has acquired the lease.
    pub(crate) fn may_be_edited_late(&self, id: &LeaseId) -> bool {
        self.own_lease(id).is_none_or(|lease| lease.in_doubt)
    }

    /// Records that the request that withdraws this comment was not answered.
    pub(super) fn mark_withdrawn(&self, comment: u64) {
        lock(&self.withdrawn).insert(comment);
    }

    /// Whether a request that withdraws this comment was sent and may still arrive.
    pub(crate) fn is_withdrawn(&self, comment: u64) -> bool {
        lock(&self.withdrawn).contains(&comment)
    }

    /// Records that this comment does not exist any more.
    pub(super) fn forget_withdrawn(&self, comment: u64) {
        lock(&self.withdrawn).remove(&comment);
    }

    pub(super) fn own_login(&self) -> Option<&str> {
        self.own_login.get().map(String::as_str)
    }

    pub(crate) fn set_own_login(&self, login: &str) {
        self.own_login.get_or_init(|| login.to_owned());
    }

    pub(crate) fn forget_lease(&self, id: &LeaseId) {
        lock(&self.own_leases).remove(id);
    }

    pub(crate) fn own_lease(&self, id: &LeaseId) -> Option<OwnLease> {
        lock(&self.own_leases).get(id).copied()
    }

    /// Returns the number of requests that renew all leases of this process once.
    pub(super) fn renewal_requests(&self) -> u64 {
        lock(&self.own_leases).values().map(|lease| lease.requests).sum()
    }
}

/// Returns a person as a holder, whose lease lasts until the assignment is removed.
pub(super) fn person_holder(login: &str, since: Timestamp) -> HeldBy {
    let holder = Holder::new(format!("@{login}, who is assigned")).expect("logins are short");
    let until = Timestamp::from_micros(u64::MAX);
    HeldBy { holder, lease: None, mode: Mode::Exclusive, token: Token::default(), since, until }
}

pub(super) fn person_lease(person: HeldBy) -> Lease {
    let id = LeaseId::from_uuid(uuid::Uuid::nil());
    let request = exclusive_request(id, person.holder, Ttl::MAX, Metadata::default());
    Lease {
        request: Arc::new(request),
        token: person.token,
        acquired_at: person.since,
        renewed_at: person.since,
        expires_at: person.until,
        renewals: 0,
        status: LeaseStatus::Active,
        release_request: None,
        took_over: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_less_frequent_and_end() {
        let (mut assigned, mut renewals) = (Assigned::Failed { attempts: 0, next: 0 }, Vec::new());
        while let Assigned::Failed { next, .. } = assigned {
            renewals.push(next);
            assigned = assigned.after_failure(next);
        }
        assert_eq!(renewals, [0, 1, 3, 7, 15, 31, 63, 127]);
        assert_eq!(assigned, Assigned::Never);
    }
}
