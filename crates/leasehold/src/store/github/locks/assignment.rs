//! Assignment of issues to the holders of their locks, for people. The client assigns the holder
//! after acquiring the lock, and unassigns it before releasing the lock. Neither decides which
//! client holds the lock: a failed attempt is repeated later, a few times.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::claim::Claim;
use super::protocol::{Assigned, Protocol};
use super::view::{ClaimState, View};
use crate::model::LeaseId;
use crate::store::BootInstant;
use crate::store::github::api::{Issue, Read};

/// Maximum duration of one attempt, including the wait for its turn to write. An attempt also takes
/// at most half of the lease's remaining time.
const MAX_ATTEMPT_TIME: Duration = Duration::from_secs(6);
/// Minimum time for an attempt, so that the renewal's response is not late.
const MIN_ATTEMPT_TIME: Duration = Duration::from_secs(1);

impl Protocol {
    /// Assigns the issue to the holder that has just acquired its lock. Repeats a failed attempt
    /// once at once, because the next attempt is a renewal away. Returns the issue after that, if
    /// GitHub has answered.
    pub(super) async fn assign(&self, lock: &str, number: u64, login: &str) -> (Option<Issue>, Assigned) {
        let first = self.try_assign(lock, number, login, Assigned::Failed { attempts: 0, next: 0 }, 0).await;
        if !matches!(first.1, Assigned::Failed { .. }) || self.api.rate_limiter.is_refused() {
            return first;
        }
        self.api.backoff(0).await;
        match self.try_assign(lock, number, login, first.1, 0).await {
            (None, Assigned::Failed { .. }) => first,
            second => second,
        }
    }

    async fn try_assign(
        &self,
        lock: &str,
        number: u64,
        login: &str,
        before: Assigned,
        renewals: u64,
    ) -> (Option<Issue>, Assigned) {
        match self.api.assign(number, login).await {
            Ok(issue) if issue.value.is_assigned_to(login) => (Some(issue.value), Assigned::Yes),
            Ok(issue) => {
                self.warn_once(number, login, "it needs push access, and a bot cannot be assigned");
                (Some(issue.value), Assigned::Never)
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(%lock, %error, "failed to assign the issue; the lock is held nevertheless");
                (None, before.after_failure(renewals))
            }
            // For example 422: this login cannot be assigned here.
            Err(error) => {
                self.warn_once(number, login, &error.to_string());
                (None, Assigned::Never)
            }
        }
    }

    /// Logs a warning once per process: it mostly concerns all issues.
    fn warn_once(&self, issue: u64, login: &str, reason: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                issue,
                login,
                reason,
                "GitHub does not assign issues to this login: locks work, but their holders are not shown as assignees"
            );
        }
    }

    /// Assigns the holder of a lease that has just been renewed, if earlier attempts failed and the
    /// next one is due. Sends no request if the holder was assigned.
    pub(super) async fn repair_assignment(
        &self,
        number: u64,
        state: &ClaimState,
        claim: &Claim,
        deadline: BootInstant,
    ) {
        let assigned = self.own_lease(&claim.lease_id).map(|lease| lease.assigned);
        let Some(before @ Assigned::Failed { next, .. }) = assigned else { return };
        let timeout = (deadline.after(BootInstant::now()) / 2).min(MAX_ATTEMPT_TIME);
        if claim.renewals < next || timeout < MIN_ATTEMPT_TIME || self.api.rate_limiter.is_refused() {
            return;
        }
        let login = &state.author;
        let repaired = tokio::time::timeout(timeout, async {
            // Another process has acquired this lease, and may have assigned the holder.
            if before.is_unknown()
                && let Ok(Some(issue)) = self.api.issue(number, Read::IfChanged).await
                && issue.value.is_assigned_to(login)
            {
                return Assigned::Yes;
            }
            self.try_assign(&claim.lock, number, login, before, claim.renewals).await.1
        });
        let assigned = repaired.await.unwrap_or_else(|_| before.after_failure(claim.renewals));
        if assigned == Assigned::Yes {
            tracing::debug!(lock = %claim.lock, login, "the issue is assigned to the holder of its lock");
        }
        self.set_assigned(&claim.lease_id, assigned);
    }

    /// Returns the assumed assignment of a lease's holder before a renewal. A lease that another
    /// process has acquired may lack its assignee: its first renewal checks this.
    pub(super) fn assumed_assignment(&self, id: &LeaseId, renewals: u64) -> Assigned {
        match self.own_lease(id) {
            Some(lease) => lease.assigned,
            None if renewals == 0 => Assigned::Failed { attempts: 0, next: 0 },
            None => Assigned::Yes,
        }
    }

    /// Unassigns the holder before its lease is released, together with the logins that earlier
    /// holders could not unassign. If that fails, the claim lists the logins that are still
    /// assigned: no client takes them for people, and the next release tries again. Returns the
    /// issue after that, if GitHub has answered.
    pub(crate) async fn unassign(
        &self,
        number: u64,
        view: &View,
        state: &ClaimState,
        claim: &mut Claim,
    ) -> Option<Issue> {
        let mut logins: Vec<String> = view.left_assigned().to_vec();
        if !logins.iter().any(|login| login.eq_ignore_ascii_case(&state.author)) {
            logins.push(state.author.clone());
        }
        let named: Vec<&str> = logins.iter().map(String::as_str).collect();
        match self.api.unassign(number, &named).await {
            Ok(issue) => {
                claim.left_assigned.clear();
                Some(issue.value)
            }
            Err(error) => {
                tracing::warn!(lock = %claim.lock, %error, "failed to remove an assignee; the next release tries again");
                claim.left_assigned = logins;
                None
            }
        }
    }
}
