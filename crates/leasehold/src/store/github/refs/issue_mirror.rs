//! Display of holders on issues: one comment, and assignees. Written after the ref has moved, with
//! best effort, and never read by a client that requests a lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::documents::RefDocuments;
use crate::error::Result;
use crate::model::{Lease, LeaseStatus, LockName, LockRecord, Outcome, Token};
use crate::store::github::api::{Comment, Read};
use crate::store::github::markup::embed_json;
use crate::store::support::mutex::lock;

/// Displays that this process has written.
pub(super) struct IssueMirror {
    documents: RefDocuments,
    /// Own login; `None` if GitHub cannot assign issues to this client.
    own_login: OnceCell<Option<String>>,
    /// Locks that this process has shown as held, each with the token of its own lease.
    held: Mutex<HashMap<LockName, Token>>,
    /// Locks whose issue could not be updated: a later renewal tries again.
    pending: Mutex<HashMap<LockName, PendingUpdate>>,
    /// Serializes updates: two concurrent edits of the same comment would undo each other.
    turn: tokio::sync::Mutex<()>,
}

/// Issue that does not show the holders yet.
#[derive(Debug, Clone, Copy, Default)]
struct PendingUpdate {
    attempts: u32,
    /// Number of renewals to skip before the next attempt.
    skipped: u32,
}

/// Maximum number of attempts; the number of renewals between two attempts doubles.
const MAX_ATTEMPTS: u32 = 8;

/// Hidden JSON in the comment, for the next update: the login that was assigned for each token.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MirrorMarker {
    lock: String,
    logins: BTreeMap<Token, String>,
}

const BEGIN: &str = "<!-- leasehold:shown ";
const END: &str = " -->";

impl IssueMirror {
    pub(super) fn new(documents: RefDocuments) -> Self {
        let (held, pending) = (Mutex::default(), Mutex::default());
        Self { documents, own_login: OnceCell::new(), held, pending, turn: tokio::sync::Mutex::default() }
    }

    /// Records whether the holders of a lock are shown; if not, a later renewal tries again.
    pub(super) fn record_result(&self, name: &LockName, is_shown: bool) {
        let mut pending = lock(&self.pending);
        if is_shown {
            pending.remove(name);
            return;
        }
        let update = pending.entry(name.clone()).or_default();
        *update = PendingUpdate { attempts: update.attempts + 1, skipped: (1 << update.attempts) - 1 };
        if update.attempts >= MAX_ATTEMPTS {
            pending.remove(name);
        }
    }

    /// Whether the next attempt is due. Counts as one renewal.
    fn is_due(&self, name: &LockName) -> bool {
        let mut pending = lock(&self.pending);
        let Some(update) = pending.get_mut(name) else { return false };
        let is_due = update.skipped == 0;
        update.skipped = update.skipped.saturating_sub(1);
        is_due
    }

    fn is_pending(&self, name: &LockName) -> bool {
        lock(&self.pending).contains_key(name)
    }

    /// Whether the outcome changes the holder that people see. A renewal does not, but it may be
    /// the next attempt to show an earlier change.
    pub(super) fn needs_update(&self, name: &LockName, outcome: &Outcome) -> bool {
        let mut held = lock(&self.held);
        match outcome {
            Outcome::Granted(lease) => held.insert(name.clone(), lease.token) != Some(lease.token),
            Outcome::Released(_) | Outcome::Forced(_) => {
                held.remove(name);
                true
            }
            Outcome::Withdrawn => held.remove(name).is_some(),
            Outcome::Renewed(_) => self.is_due(name),
            _ => false,
        }
    }

    /// Updates the issue to match the record. `own_token` is that of a lease that this process has
    /// just acquired or renewed.
    pub(super) async fn update(
        &self,
        name: &LockName,
        number: u64,
        record: Option<&LockRecord>,
        own_token: Option<Token>,
    ) -> Result<()> {
        let _turn = self.turn.lock().await;
        let api = &self.documents.0.api;
        let Some(comments) = api.comments(number, Read::Fresh).await? else {
            tracing::warn!(lock = %name, issue = number, "the issue does not exist: the holder of this lock is shown only on its ref");
            return Ok(());
        };
        let found =
            comments.value.iter().find_map(|comment| self.marker(comment).map(|marker| (comment, marker)));
        let before = found.as_ref().map(|(_, marker)| marker.clone()).unwrap_or_default();
        let own_login = self.own_login.get_or_try_init(|| api.login()).await?;
        let holders: Vec<&Lease> = record
            .into_iter()
            .flat_map(|record| &record.holders)
            .filter(|lease| lease.status != LeaseStatus::Released)
            .collect();
        let mut logins = before.logins.clone();
        logins.retain(|token, _| holders.iter().any(|lease| lease.token == *token));
        if let (Some(token), Some(login)) =
            (own_token.filter(|token| holders.iter().any(|lease| lease.token == *token)), own_login)
        {
            logins.insert(token, login.clone());
        }
        let mut marker = MirrorMarker { lock: name.as_str().to_owned(), logins };
        let mut removed: Vec<&str> = before.logins.values().map(String::as_str).collect();
        removed.retain(|login| !marker.logins.values().any(|kept| kept == login));
        removed.dedup();
        let unassigned =
            if removed.is_empty() { Ok(()) } else { api.unassign(number, &removed).await.map(drop) };
        if unassigned.is_err() {
            // The comment still lists these logins, so that the next update tries again.
            let left = before.logins.iter().filter(|(_, login)| removed.contains(&login.as_str()));
            marker.logins.extend(left.map(|(token, login)| (*token, login.clone())));
        }
        let waiters = record.map_or(0, |record| record.waiters.len());
        let text = text(&holders, waiters, &marker);
        match found {
            Some((comment, _)) if comment.body.as_deref() == Some(text.as_str()) => {}
            Some((comment, _)) => drop(api.edit_comment(comment.id, &text).await?),
            None if holders.is_empty() => {}
            None => drop(api.post_comment(number, &text).await?),
        }
        let is_pending = own_token.is_some() && self.is_pending(name);
        let is_new = |login: &&String| !before.logins.values().any(|known| known == *login);
        let is_own = |login: &&String| is_pending && own_login.as_ref() == Some(*login);
        for login in marker.logins.values().filter(|login| is_new(login) || is_own(login)) {
            api.assign(number, login).await?;
        }
        unassigned
    }

    /// Parses the hidden JSON of a comment, only from trusted authors: otherwise any user could
    /// have any login unassigned.
    fn marker(&self, comment: &Comment) -> Option<MirrorMarker> {
        let (author, role) = (comment.user.as_ref()?, comment.author_association.as_deref());
        let (_, rest) = comment.body.as_deref()?.split_once(BEGIN)?;
        let marker = serde_json::from_str(rest.split_once(END)?.0).ok()?;
        // The token of an App cannot query its own login.
        let own_login = self.own_login.get().and_then(Option::as_deref);
        self.documents.0.api.is_trusted(Some(author), role, own_login).then_some(marker)
    }
}

fn text(holders: &[&Lease], waiters: usize, marker: &MirrorMarker) -> String {
    let mut lines: Vec<String> = holders
        .iter()
        .map(|lease| {
            let holder = lease.request.holder.to_string().replace('`', "'");
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
    format!("{}\n\n{}", lines.join("\n\n"), embed_json(BEGIN, marker))
}
