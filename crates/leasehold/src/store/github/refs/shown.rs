//! Display of holders on issues: one comment, and assignees. Written after the ref has moved, with
//! best effort, and never read by a client that requests a lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::super::answers::Comment;
use super::super::api::Read;
use super::docs::RefDocs;
use crate::error::Result;
use crate::model::{Lease, LockName, LockRecord, Outcome, Status, Token};

/// Displays that this process has written.
pub(super) struct Shown {
    docs: RefDocs,
    /// Own login; `None` if GitHub cannot assign issues to this client.
    me: OnceCell<Option<String>>,
    /// Locks that this process has shown as held, each with the token of its own lease.
    held: Mutex<HashMap<LockName, Token>>,
    /// Locks whose issue could not be updated: a later renewal tries again.
    owed: Mutex<HashMap<LockName, Owed>>,
    /// Serializes updates: two concurrent edits of the same comment would undo each other.
    turn: tokio::sync::Mutex<()>,
}

/// Issue that does not show the holders yet.
#[derive(Debug, Clone, Copy, Default)]
struct Owed {
    tries: u32,
    /// Number of renewals before the next attempt.
    pass: u32,
}

/// Maximum number of attempts; the number of renewals between two attempts doubles.
const MAX_TRIES: u32 = 8;

/// Hidden JSON in the comment, for the next update: the login that was assigned for each token.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Plate {
    lock: String,
    logins: BTreeMap<Token, String>,
}

const BEGIN: &str = "<!-- leasehold:shown ";
const END: &str = " -->";
/// Author associations whose comments count.
const INSIDERS: [&str; 3] = ["OWNER", "MEMBER", "COLLABORATOR"];

impl Shown {
    pub(super) fn new(docs: RefDocs) -> Self {
        let (held, owed) = (Mutex::default(), Mutex::default());
        Self { docs, me: OnceCell::new(), held, owed, turn: tokio::sync::Mutex::default() }
    }

    /// Records the result of showing the holders of a lock. If it failed, a later renewal tries
    /// again.
    pub(super) fn shown(&self, name: &LockName, is_shown: bool) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if is_shown {
            owed.remove(name);
            return;
        }
        let there = owed.entry(name.clone()).or_default();
        *there = Owed { tries: there.tries + 1, pass: (1 << there.tries) - 1 };
        if there.tries >= MAX_TRIES {
            owed.remove(name);
        }
    }

    /// Whether the next attempt is due. Counts as one renewal.
    fn is_due(&self, name: &LockName) -> bool {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(there) = owed.get_mut(name) else { return false };
        let is_due = there.pass == 0;
        there.pass = there.pass.saturating_sub(1);
        is_due
    }

    fn is_owed(&self, name: &LockName) -> bool {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// Whether the outcome changes the holder that people see. A renewal does not, but it may be
    /// the next attempt to show an earlier change.
    pub(super) fn is_news(&self, name: &LockName, outcome: &Outcome) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Outcome::Granted(lease) => held.insert(name.clone(), lease.token) != Some(lease.token),
            Outcome::Released(_) | Outcome::Forced(_) => {
                held.remove(name);
                true
            }
            Outcome::Left => held.remove(name).is_some(),
            Outcome::Renewed(_) => self.is_due(name),
            _ => false,
        }
    }

    /// Updates the issue to match the record. `mine` is the token of a lease that this process has
    /// just acquired or renewed.
    pub(super) async fn show(
        &self,
        name: &LockName,
        number: u64,
        record: Option<&LockRecord>,
        mine: Option<Token>,
    ) -> Result<()> {
        let _turn = self.turn.lock().await;
        let api = &self.docs.0.api;
        let Some(comments) = api.comments(number, Read::Anew).await? else {
            tracing::warn!(lock = %name, issue = number, "there is no such issue: who holds this lock is seen on its ref alone");
            return Ok(());
        };
        let found =
            comments.what.iter().find_map(|comment| self.plate(comment).map(|plate| (comment, plate)));
        let before = found.as_ref().map(|(_, plate)| plate.clone()).unwrap_or_default();
        let me = self.me.get_or_try_init(|| api.login()).await?;
        let holders: Vec<&Lease> = record
            .into_iter()
            .flat_map(|record| &record.holders)
            .filter(|lease| lease.status != Status::Released)
            .collect();
        let mut logins = before.logins.clone();
        logins.retain(|token, _| holders.iter().any(|lease| lease.token == *token));
        if let (Some(mine), Some(me)) =
            (mine.filter(|mine| holders.iter().any(|lease| lease.token == *mine)), me)
        {
            logins.insert(mine, me.clone());
        }
        let mut plate = Plate { lock: name.as_str().to_owned(), logins };
        let mut gone: Vec<&str> = before.logins.values().map(String::as_str).collect();
        gone.retain(|login| !plate.logins.values().any(|stays| stays == login));
        gone.dedup();
        let unassigned = if gone.is_empty() { Ok(()) } else { api.unassign(number, &gone).await.map(drop) };
        if unassigned.is_err() {
            // The comment still lists these logins, so that the next process that shows this lock
            // tries again.
            let left = before.logins.iter().filter(|(_, login)| gone.contains(&login.as_str()));
            plate.logins.extend(left.map(|(token, login)| (*token, login.clone())));
        }
        let waiters = record.map_or(0, |record| record.waiters.len());
        let text = text(&holders, waiters, &plate);
        match found {
            Some((comment, _)) if comment.body.as_deref() == Some(text.as_str()) => {}
            Some((comment, _)) => drop(api.edit_comment(comment.id, &text).await?),
            None if holders.is_empty() => {}
            None => drop(api.post_comment(number, &text).await?),
        }
        let is_owed = mine.is_some() && self.is_owed(name);
        let is_new = |login: &&String| !before.logins.values().any(|known| known == *login);
        let is_mine = |login: &&String| is_owed && me.as_ref() == Some(*login);
        for login in plate.logins.values().filter(|login| is_new(login) || is_mine(login)) {
            api.assign(number, login).await?;
        }
        unassigned
    }

    /// Parses the hidden JSON of a comment, only from trusted authors: otherwise any user could
    /// have any login unassigned.
    fn plate(&self, comment: &Comment) -> Option<Plate> {
        let insider = comment.author_association.as_deref().is_some_and(|role| INSIDERS.contains(&role));
        let workers = &self.docs.0.api.options.workers;
        let author = comment.user.as_ref()?;
        let known = workers.iter().any(|worker| worker.eq_ignore_ascii_case(&author.login));
        let (_, rest) = comment.body.as_deref()?.split_once(BEGIN)?;
        let plate = serde_json::from_str(rest.split_once(END)?.0).ok()?;
        let me = match self.me.get().and_then(Option::as_ref) {
            Some(me) => me.eq_ignore_ascii_case(&author.login),
            // The token of an App cannot query its own login.
            None => self.docs.0.api.may_be_me(author),
        };
        (insider || known || me).then_some(plate)
    }
}

fn text(holders: &[&Lease], waiters: usize, plate: &Plate) -> String {
    let mut lines: Vec<String> = holders
        .iter()
        .map(|lease| {
            let holder = lease.ask.holder.to_string().replace('`', "'");
            format!("🔒 **Held** by `{holder}` since {} (token {}).", lease.acquired_at, lease.token)
        })
        .collect();
    if lines.is_empty() {
        lines.push("🔓 Free.".to_owned());
    }
    if waiters > 0 {
        lines.push(format!("⏳ {waiters} waiting, when this was last changed."));
    }
    lines.push("A copy for people: the lock itself is a git ref.".to_owned());
    let json = serde_json::to_string(plate).expect("plain data becomes JSON");
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e");
    format!("{}\n\n{BEGIN}{json}{END}", lines.join("\n\n"))
}
