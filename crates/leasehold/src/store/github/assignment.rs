//! Assignment of issues to the holders of their locks, for people. The client assigns the holder
//! after acquiring the lock, and unassigns it before releasing the lock. Neither decides which
//! client holds the lock: a failed attempt is repeated later, a few times.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::answers::Issue;
use super::api::Read;
use super::claim::Claim;
use super::issues::pause;
use super::protocol::Protocol;
use super::view::{Standing, View};
use crate::model::LeaseId;
use crate::store::BootInstant;

/// Assignment of a lease's holder to the issue, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Assigned {
    /// The holder was assigned. If a person has removed the assignment since, no client restores
    /// it.
    Yes,
    /// `tries` attempts have failed; the renewal with the number `next` makes the next one.
    Failed { tries: u32, next: u64 },
    /// GitHub does not assign this login, or too many attempts have failed.
    Never,
}

/// Maximum number of attempts per lease. The number of renewals between two attempts doubles: 1, 2,
/// 4…
const MAX_TRIES: u32 = 8;
/// Maximum duration of one attempt, including the wait for its turn to write. An attempt also takes
/// at most half of the lease's remaining time.
const TRY_TIME: Duration = Duration::from_secs(6);
/// Minimum time for an attempt: with less, no attempt is made, because the renewal's response must
/// not be late.
const LEAST: Duration = Duration::from_secs(1);

impl Protocol {
    /// Assigns the issue to the holder that has just acquired its lock. Repeats a failed attempt
    /// once at once, because the next attempt is a renewal away. Returns the issue after that, if
    /// GitHub has answered.
    pub(super) async fn assign(&self, lock: &str, number: u64, login: &str) -> (Option<Issue>, Assigned) {
        let first = self.try_to_assign(lock, number, login, Assigned::Failed { tries: 0, next: 0 }, 0).await;
        if !matches!(first.1, Assigned::Failed { .. }) || self.api.pace.is_refused() {
            return first;
        }
        pause(&self.api, 0).await;
        match self.try_to_assign(lock, number, login, first.1, 0).await {
            (None, Assigned::Failed { .. }) => first,
            second => second,
        }
    }

    async fn try_to_assign(
        &self,
        lock: &str,
        number: u64,
        login: &str,
        before: Assigned,
        beat: u64,
    ) -> (Option<Issue>, Assigned) {
        match self.api.assign(number, login).await {
            Ok(issue) if issue.what.is_assigned_to(login) => (Some(issue.what), Assigned::Yes),
            Ok(issue) => {
                self.warn_once(number, login, "it needs push access, and a bot cannot be assigned");
                (Some(issue.what), Assigned::Never)
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(%lock, %error, "the issue could not be assigned; the lock is held all the same");
                (None, before.failed_again(beat))
            }
            // For example 422: this login cannot be assigned here.
            Err(error) => {
                self.warn_once(number, login, &error.to_string());
                (None, Assigned::Never)
            }
        }
    }

    /// Logs a warning once per process: a login that cannot be assigned to one issue can rarely be
    /// assigned to others.
    fn warn_once(&self, issue: u64, login: &str, why: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                issue,
                login,
                why,
                "GitHub does not assign issues to this login. Locks work all the same, but people do not see the holder as assignee"
            );
        }
    }

    /// Assigns the holder of a lease that has just been renewed, if earlier attempts failed and the
    /// next one is due. Sends no request if the holder was assigned.
    pub(super) async fn repair_assignment(
        &self,
        number: u64,
        standing: &Standing,
        claim: &Claim,
        deadline: BootInstant,
    ) {
        let Some(Assigned::Failed { next, .. }) = self.mine(&claim.lease_id).map(|mine| mine.assigned) else {
            return;
        };
        let time = (deadline.after(BootInstant::now()) / 2).min(TRY_TIME);
        if claim.beat < next || time < LEAST || self.api.pace.is_refused() {
            return;
        }
        let before = self.mine(&claim.lease_id).map_or(Assigned::Never, |mine| mine.assigned);
        let login = &standing.author;
        let repaired = tokio::time::timeout(time, async {
            // Another process has acquired this lease, and may have assigned the holder.
            if before.is_unknown()
                && let Ok(Some(issue)) = self.api.issue(number, Read::IfChanged).await
                && issue.what.is_assigned_to(login)
            {
                return Assigned::Yes;
            }
            self.try_to_assign(&claim.lock, number, login, before, claim.beat).await.1
        });
        let assigned = repaired.await.unwrap_or_else(|_| before.failed_again(claim.beat));
        if assigned == Assigned::Yes {
            tracing::debug!(lock = %claim.lock, login, "the issue is assigned to the holder of its lock");
        }
        self.set_assigned(&claim.lease_id, assigned);
    }

    /// Returns the assumed assignment of a lease's holder before a renewal. A lease that another
    /// process has acquired may lack its assignee: its first renewal checks this.
    pub(super) fn assumed(&self, id: &LeaseId, beat: u64) -> Assigned {
        match self.mine(id) {
            Some(mine) => mine.assigned,
            None if beat == 0 => Assigned::Failed { tries: 0, next: 0 },
            None => Assigned::Yes,
        }
    }

    /// Unassigns the holder before its lease is released, together with the logins that earlier
    /// holders could not unassign. If that fails, the claim lists the logins that are still
    /// assigned: no client takes them for people, and the next release tries again. Returns the
    /// issue after that, if GitHub has answered.
    pub(super) async fn unassign(
        &self,
        number: u64,
        view: &View,
        standing: &Standing,
        claim: &mut Claim,
    ) -> Option<Issue> {
        let mut logins: Vec<String> = view.left_assigned().to_vec();
        if !logins.iter().any(|login| login.eq_ignore_ascii_case(&standing.author)) {
            logins.push(standing.author.clone());
        }
        let named: Vec<&str> = logins.iter().map(String::as_str).collect();
        match self.api.unassign(number, &named).await {
            Ok(issue) => {
                claim.left_assigned.clear();
                Some(issue.what)
            }
            Err(error) => {
                tracing::warn!(lock = %claim.lock, %error, "an assignment could not be taken back; the next release tries again");
                claim.left_assigned = logins;
                None
            }
        }
    }
}

impl Assigned {
    /// Returns the state after one more failed attempt, which the renewal with the number `beat`
    /// made.
    fn failed_again(self, beat: u64) -> Self {
        match self {
            Self::Failed { tries, .. } if tries + 1 < MAX_TRIES => {
                Self::Failed { tries: tries + 1, next: beat + (1 << tries) }
            }
            Self::Failed { .. } | Self::Never => Self::Never,
            Self::Yes => Self::Yes,
        }
    }

    /// Whether this process has made no attempt yet.
    const fn is_unknown(self) -> bool {
        matches!(self, Self::Failed { tries: 0, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_come_less_often_and_end() {
        let (mut assigned, mut beats) = (Assigned::Failed { tries: 0, next: 0 }, Vec::new());
        while let Assigned::Failed { next, .. } = assigned {
            beats.push(next);
            assigned = assigned.failed_again(next);
        }
        assert_eq!(beats, [0, 1, 3, 7, 15, 31, 63, 127]);
        assert_eq!(assigned, Assigned::Never);
    }
}
