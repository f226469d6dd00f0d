//! Mapping from locks to issues: the issue with the lock's number, or the issue that was created
//! for the lock's name.
//!
//! Two clients that create an issue for the same name at once must not end up with two. So a client
//! creates an issue in the same way as it acquires a lock: the new issue states that it is only a
//! candidate; its creator checks whether there is another one; and only if it has seen
//! none, it turns the candidate into the lock, permanently.

use std::collections::HashMap;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::claim::BEGIN;
use super::view::GRACE;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::LockName;
use crate::store::BootInstant;
use crate::store::github::api::{Api, Dated, Issue};
use crate::store::github::markup::{embed_json, extract_json};
use crate::store::github::options::CANDIDATE_TTL;
use crate::store::support::mutex::lock;

/// Known issues, by the names of their locks.
#[derive(Debug, Default)]
pub(super) struct Issues {
    known: Mutex<HashMap<LockName, u64>>,
    /// Serializes creation: the creators of one process need not compete.
    creation: tokio::sync::Mutex<()>,
}

/// Hidden JSON in the text of a lock's issue.
#[derive(Debug, Serialize, Deserialize)]
struct LockMarker {
    lock: String,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Candidate,
    Settled,
}

/// Maximum number of repeated reads while other candidates give way.
const MAX_READS: u32 = 8;

/// Returns the number in a name like `#123` or `issue/123`.
pub(crate) fn issue_number(name: &LockName) -> Option<u64> {
    let digits = name.as_str().strip_prefix('#').or_else(|| name.as_str().strip_prefix("issue/"))?;
    digits.parse().ok().filter(|number| *number > 0 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a lock whose name starts with `prefix` can be named after a number.
pub(super) fn may_be_numbered(prefix: &str) -> bool {
    ["#", "issue/"].iter().any(|begin| begin.starts_with(prefix) || prefix.starts_with(begin))
}

/// Returns the lock of an issue; `None` if the issue is only a candidate.
pub(super) fn lock_name_of(issue: &Issue) -> Option<LockName> {
    let name = match marker(issue) {
        Some(marker) if marker.state == State::Candidate => return None,
        Some(marker) => marker.lock,
        // A person has created the issue: its title is the name of the lock.
        None => issue.title.clone(),
    };
    LockName::new(name).ok()
}

/// Whether an issue was created for the name of a lock.
pub(crate) fn is_lock(issue: &Issue) -> bool {
    marker(issue).is_some()
}

impl Issues {
    /// Returns the issue of a lock; `None` if no client has requested the lock yet.
    pub(crate) async fn find(&self, api: &Api, name: &LockName) -> Result<Option<u64>> {
        if let Some(number) = issue_number(name).or_else(|| self.known(name)) {
            return Ok(Some(number));
        }
        let listed = api.list_lock_issues().await?;
        let found = settled(api, name, &listed.value)?;
        Ok(found.inspect(|number| self.remember(name, *number)))
    }

    pub(super) async fn find_or_create(&self, api: &Api, name: &LockName) -> Result<u64> {
        let _turn = self.creation.lock().await;
        let mut reads = 0;
        loop {
            if let Some(number) = self.find(api, name).await? {
                return Ok(number);
            }
            let listed = api.list_lock_issues().await?;
            let others = candidates(name, &listed);
            if others.is_empty()
                && let Some(number) = create(api, name).await?
            {
                self.remember(name, number);
                return Ok(number);
            }
            if reads == MAX_READS {
                let message = format!("the issue for lock '{name}' is being created by another client");
                return Err(Error::store(StoreErrorKind::Unavailable, message, "try again in a minute"));
            }
            api.backoff(reads).await;
            reads += 1;
        }
    }

    /// Forgets the issue of a lock, which is another issue from now on, or none.
    pub(crate) fn forget(&self, name: &LockName) {
        lock(&self.known).remove(name);
    }

    fn known(&self, name: &LockName) -> Option<u64> {
        lock(&self.known).get(name).copied()
    }

    fn remember(&self, name: &LockName, number: u64) {
        lock(&self.known).insert(name.clone(), number);
    }
}

/// Creates an issue as a candidate, reads the other candidates, and settles the issue. Returns
/// `None` if another client was first, or may have been.
async fn create(api: &Api, name: &LockName) -> Result<Option<u64>> {
    let deadline = BootInstant::now().plus(api.options.candidate_ttl);
    let label = api.options.label.as_str();
    let issue = api.create_issue(name.as_str(), &text(name, State::Candidate), &[label]).await?.value;
    let number = issue.number;
    if !issue.has_label(label) {
        // No list of locks would ever contain this issue.
        close(api, name, number).await;
        let problem = format!("does not let this token label the issue of the new lock '{name}'");
        let hint = "let a login with push access acquire the lock once; or lock an issue by its number, such as '#1'";
        return Err(api.error(StoreErrorKind::NotPermitted, &problem, hint));
    }
    let can_settle = can_settle(api, name, number).await;
    if !matches!(can_settle, Ok(true)) || BootInstant::now() >= deadline {
        close(api, name, number).await;
        return can_settle.map(|_| None);
    }
    // From here on the issue stays open: even without a response it may be settled, and then other
    // clients use it as the lock.
    let settled = json!({ "body": text(name, State::Settled) });
    api.edit_issue_repeatedly(number, &settled, deadline).await?;
    Ok((BootInstant::now() < deadline).then_some(number))
}

/// Closes an issue that does not become the lock.
async fn close(api: &Api, name: &LockName, number: u64) {
    let change = json!({ "state": "closed", "state_reason": "not_planned" });
    if let Err(error) = api.edit_issue(number, change, None).await {
        tracing::warn!(lock = %name, issue = number, %error, "failed to close an issue that is not needed");
    }
}

/// Whether this client's candidate is the only one for this lock, which has no issue yet.
async fn can_settle(api: &Api, name: &LockName, number: u64) -> Result<bool> {
    for read in 0..MAX_READS {
        let listed = api.list_lock_issues().await?;
        if settled(api, name, &listed.value)?.is_some() {
            return Ok(false);
        }
        let candidates = candidates(name, &listed);
        // A list without this client's own candidate is stale.
        if candidates == [number] {
            return Ok(true);
        }
        if candidates.iter().any(|other| *other < number) && candidates.contains(&number) {
            return Ok(false);
        }
        api.backoff(read).await;
    }
    Ok(false)
}

/// Returns the issue of this lock: the open one or, if there is none, the closed one. Fails if
/// several are open.
fn settled(api: &Api, name: &LockName, listed: &[Issue]) -> Result<Option<u64>> {
    let matching = listed.iter().filter(|issue| lock_name_of(issue).as_ref() == Some(name));
    let (open, closed): (Vec<_>, Vec<_>) = matching.partition(|issue| !issue.is_closed());
    match open.as_slice() {
        [one] => Ok(Some(one.number)),
        [] => Ok(closed.last().map(|issue| issue.number)),
        [one, other, ..] => {
            let message = format!(
                "lock '{name}' has two open issues in the GitHub repository {}: #{} and #{}",
                api.repository(),
                one.number,
                other.number
            );
            let hint = "close one of them, or give it another title";
            Err(Error::store(StoreErrorKind::Misconfigured, message, hint))
        }
    }
}

/// Returns the candidates for this lock whose creators may still be at work.
fn candidates(name: &LockName, listed: &Dated<Vec<Issue>>) -> Vec<u64> {
    let is_live = |issue: &&Issue| {
        let is_candidate = marker(issue)
            .is_some_and(|marker| marker.state == State::Candidate && marker.lock == name.as_str());
        let may_settle = listed.now < issue.created_at.plus(CANDIDATE_TTL).plus(GRACE);
        is_candidate && !issue.is_closed() && may_settle
    };
    listed.value.iter().filter(is_live).map(|issue| issue.number).collect()
}

fn marker(issue: &Issue) -> Option<LockMarker> {
    extract_json::<LockMarker>(BEGIN, issue.body.as_deref().unwrap_or_default())?.ok()
}

fn text(name: &LockName, state: State) -> String {
    let marker = LockMarker { lock: name.as_str().to_owned(), state };
    format!(
        "This issue is a lock of [leasehold](https://github.com/leasehold/leasehold): who holds it is its assignee, and says \
         more in a comment below. To keep programs out, assign yourself or close it. Do not edit its comments; to take the lock from \
         its holder, delete the comment that says **Held**.\n\n{}",
        embed_json(BEGIN, &marker)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_the_number_of_an_issue() {
        let number = |name: &str| super::issue_number(&LockName::new(name).unwrap());
        assert_eq!((number("#123"), number("issue/7")), (Some(123), Some(7)));
        for name in ["123", "#", "#0", "#+1", "issue/", "issue/x", "##1", "#1 "] {
            if let Ok(name) = LockName::new(name) {
                assert_eq!(super::issue_number(&name), None, "{name}");
            }
        }
    }
}
