//! Mapping from locks to issues: the issue with the lock's number, or the issue that was created
//! for the lock's name.
//!
//! Two clients that create an issue for the same name at once must not end up with two. So a client
//! creates an issue in the same way as it acquires a lock: the new issue states that it is only a
//! candidate (a *flag*); its creator checks whether there is another one; and only if it has seen
//! none, it turns the candidate into the lock, permanently.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answers::Issue;
use super::api::{Api, Dated};
use super::claim::{hidden, shown};
use super::view::{GRACE, RAISED};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{LockName, Timestamp};
use crate::store::BootInstant;

/// Known issues, by the names of their locks.
#[derive(Debug, Default)]
pub(super) struct Issues {
    known: Mutex<HashMap<LockName, u64>>,
    /// Serializes creation: the creators of one process need not compete.
    making: tokio::sync::Mutex<()>,
}

/// Hidden JSON in the text of a lock's issue.
#[derive(Debug, Serialize, Deserialize)]
struct Plate {
    lock: String,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Raised,
    Settled,
}

/// Maximum number of repeated reads while other candidates give way.
const LOOKS: u32 = 8;

/// Returns the number in a name like `#123` or `issue/123`.
pub(super) fn number(name: &LockName) -> Option<u64> {
    let digits = name.as_str().strip_prefix('#').or_else(|| name.as_str().strip_prefix("issue/"))?;
    digits.parse().ok().filter(|number| *number > 0 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a lock whose name starts with `prefix` can be named after a number.
pub(super) fn may_be_number(prefix: &str) -> bool {
    ["#", "issue/"].iter().any(|begin| begin.starts_with(prefix) || prefix.starts_with(begin))
}

/// Returns the lock of an issue; `None` if the issue is only a candidate.
pub(super) fn lock_of(issue: &Issue) -> Option<LockName> {
    let name = match plate(issue) {
        Some(plate) if plate.state == State::Raised => return None,
        Some(plate) => plate.lock,
        // A person has created the issue: its title is the name of the lock.
        None => issue.title.clone(),
    };
    LockName::new(name).ok()
}

/// Whether an issue was created for the name of a lock.
pub(super) fn is_lock(issue: &Issue) -> bool {
    plate(issue).is_some()
}

impl Issues {
    /// Returns the issue of a lock; `None` if no client has requested the lock yet.
    pub(super) async fn find(&self, api: &Api, name: &LockName) -> Result<Option<u64>> {
        if let Some(number) = number(name).or_else(|| self.known(name)) {
            return Ok(Some(number));
        }
        let listed = api.labelled().await?;
        let found = settled(api, name, &listed.what)?;
        Ok(found.inspect(|number| self.learn(name, *number)))
    }

    /// Returns the issue of a lock; creates it if needed.
    pub(super) async fn find_or_make(&self, api: &Api, name: &LockName) -> Result<u64> {
        let _turn = self.making.lock().await;
        let mut looks = 0;
        loop {
            if let Some(number) = self.find(api, name).await? {
                return Ok(number);
            }
            let listed = api.labelled().await?;
            let others = flags(name, &listed);
            if others.is_empty()
                && let Some(number) = make(api, name).await?
            {
                self.learn(name, number);
                return Ok(number);
            }
            if looks == LOOKS {
                return Err(busy(name));
            }
            pause(api, looks).await;
            looks += 1;
        }
    }

    /// Forgets the issue of a lock, which is another issue from now on, or none.
    pub(super) fn forget(&self, name: &LockName) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn known(&self, name: &LockName) -> Option<u64> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn learn(&self, name: &LockName, number: u64) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), number);
    }
}

/// Creates an issue as a candidate, reads the other candidates, and settles the issue. Returns
/// `None` if another client was first.
async fn make(api: &Api, name: &LockName) -> Result<Option<u64>> {
    let sent = BootInstant::now();
    let deadline = sent.plus(RAISED.as_duration());
    let made =
        api.create_issue(name.as_str(), &text(name, State::Raised), &[&api.options.label]).await?.what.number;
    let settled = settle(api, name, made, deadline).await;
    if !matches!(settled, Ok(true)) {
        let change =
            json!({ "state": "closed", "state_reason": "not_planned", "body": text(name, State::Raised) });
        let closed = api.edit_issue(made, change).await;
        if let Err(error) = closed {
            tracing::warn!(lock = %name, issue = made, %error, "an issue that is not needed could not be closed");
        }
    }
    settled.map(|settled| settled.then_some(made))
}

async fn settle(api: &Api, name: &LockName, made: u64, deadline: BootInstant) -> Result<bool> {
    for look in 0..LOOKS {
        let listed = api.labelled().await?;
        if settled(api, name, &listed.what)?.is_some() {
            return Ok(false);
        }
        let flags = flags(name, &listed);
        // A list without this client's own candidate is stale.
        if flags == [made] {
            api.edit_issue(made, json!({ "body": text(name, State::Settled) })).await?;
            return Ok(BootInstant::now() < deadline);
        }
        if flags.iter().any(|other| *other < made) && flags.contains(&made) {
            return Ok(false);
        }
        pause(api, look).await;
    }
    Ok(false)
}

/// Returns the issue of this lock: the open one or, if there is none, the closed one. Fails if
/// several are open.
fn settled(api: &Api, name: &LockName, listed: &[Issue]) -> Result<Option<u64>> {
    let mine = listed.iter().filter(|issue| lock_of(issue).as_ref() == Some(name));
    let (open, closed): (Vec<_>, Vec<_>) = mine.partition(|issue| !issue.is_closed());
    match open.as_slice() {
        [one] => Ok(Some(one.number)),
        [] => Ok(closed.last().map(|issue| issue.number)),
        [one, other, ..] => {
            let message = format!(
                "lock '{name}' is two issues of the GitHub repository {}: #{} and #{}",
                api.repository(),
                one.number,
                other.number
            );
            Err(Error::store(
                StoreErrorKind::Misconfigured,
                message,
                "close one of them, or give it another title",
            ))
        }
    }
}

/// Returns the candidates for this lock whose creators may still be at work.
fn flags(name: &LockName, listed: &Dated<Vec<Issue>>) -> Vec<u64> {
    let is_up = |issue: &&Issue| {
        let raised =
            plate(issue).is_some_and(|plate| plate.state == State::Raised && plate.lock == name.as_str());
        raised && !issue.is_closed() && is_young(issue, listed.now)
    };
    listed.what.iter().filter(is_up).map(|issue| issue.number).collect()
}

fn is_young(issue: &Issue, now: Timestamp) -> bool {
    now < issue.created_at.plus(RAISED).plus(GRACE)
}

fn plate(issue: &Issue) -> Option<Plate> {
    shown::<Plate>(issue.body.as_deref().unwrap_or_default())?.ok()
}

fn text(name: &LockName, state: State) -> String {
    let plate = Plate { lock: name.as_str().to_owned(), state };
    format!(
        "This issue is a lock of [leasehold](https://github.com/leasehold/leasehold): who holds it is its assignee, and says \
         more in a comment below. To keep programs out, assign yourself or close it. Do not edit its comments; to take the lock from \
         its holder, delete the comment that says **Held**.\n\n{}",
        hidden(&plate)
    )
}

fn busy(name: &LockName) -> Error {
    let message = format!("the issue for lock '{name}' is being made by somebody else");
    Error::store(StoreErrorKind::Unavailable, message, "try again in a minute")
}

/// Sleeps for long enough that another client can give way.
pub(super) async fn pause(api: &Api, again: u32) {
    let least = (api.options.gap / 2).max(Duration::from_millis(20));
    let pause = least.saturating_mul(1 << again.min(3));
    tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_names_are_numbers() {
        let number = |name: &str| super::number(&LockName::new(name).unwrap());
        assert_eq!((number("#123"), number("issue/7")), (Some(123), Some(7)));
        for name in ["123", "#", "#0", "#+1", "issue/", "issue/x", "##1", "#1 "] {
            if let Ok(name) = LockName::new(name) {
                assert_eq!(super::number(&name), None, "{name}");
            }
        }
    }
}
