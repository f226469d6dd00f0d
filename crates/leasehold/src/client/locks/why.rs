//! Explanation of a lock: reads it and its newest events, and lets the model explain it.

use serde::Serialize;

use super::admin::{Locks, SEARCHED_EVENTS};
use super::status::{LastLease, LockStatus};
use crate::client::context::parsed;
use crate::error::{Error, Result};
use crate::model::{
    Event, LeaseId, LeaseStatus, LockName, LockReason, LockRecord, LockRemedy, LockSurroundings, Timestamp,
};
use crate::store::{ListEvents, is_dead};

/// Explanation of a lock at one point of the store's time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LockExplanation {
    /// Status of the lock.
    pub status: LockStatus,
    /// Facts that explain the status, the most important first; never empty.
    pub reasons: Vec<LockReason>,
    /// Commands that help, the gentlest first.
    pub remedies: Vec<LockRemedy>,
}

impl Locks {
    /// Explains a lock: who holds it, whether the holder still renews, who waits in which order and for
    /// what, and what frees it; or why it is free. The lock and its newest events are read one after the
    /// other.
    pub async fn why(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<LockExplanation> {
        let (name, locks): (LockName, _) = (parsed(name)?, self.inner.locks());
        let record = locks.get(&name).await?.unwrap_or_else(|| LockRecord::new(name.clone()));
        let events = if record.holders.is_empty() {
            // The record of an idle lock may have been forgotten before its history.
            let newest = ListEvents::default().lock(name).limit(SEARCHED_EVENTS);
            match locks.history(&newest).await {
                Ok(page) => page.items,
                Err(error) if error.is_not_permitted() => Vec::new(),
                Err(error) => return Err(error),
            }
        } else {
            Vec::new()
        };
        Ok(LockExplanation::of(&record, &events, locks.now().await?))
    }
}

impl LockExplanation {
    /// Explains a record at `now`. `events` are the newest events of the lock, the newest first; they
    /// matter only if the record has no lease.
    pub fn of(record: &LockRecord, events: &[Event], now: Timestamp) -> Self {
        let dead = record.holders.iter().filter(|lease| {
            lease.status != LeaseStatus::Released && lease.request.process.as_ref().is_some_and(is_dead)
        });
        let dead: Vec<LeaseId> = dead.map(|lease| lease.request.lease_id).collect();
        let around = LockSurroundings { now, dead: &dead, events };
        let mut status = LockStatus::of(record, now);
        if record.holders.is_empty() {
            status.last = LastLease::of(events);
        }
        Self { status, reasons: record.why(&around), remedies: record.remedies(&around) }
    }

    /// Returns the reasons as sentences, with times in UTC.
    pub fn sentences(&self) -> Vec<String> {
        self.reasons.iter().map(|reason| reason.text(self.status.now)).collect()
    }
}

/// JSON view of an explanation; the binary and the server write the same view.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LockExplanationView {
    /// Name of the lock.
    pub name: String,
    /// Same as `name`, under the key that older scripts may use.
    pub lock: String,
    /// Store time of the explanation.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub now: String,
    /// Reasons that explain the lock, the most important first: the leases, or why there is none; the
    /// queue in order; what frees the lock.
    pub reasons: Vec<LockReasonView>,
    /// The reasons as sentences.
    pub explanation: Vec<String>,
    /// Commands that help, the gentlest first.
    pub commands: Vec<LockCommandView>,
    /// Status of the lock.
    pub status: LockStatus,
}

/// Fact that explains the state of a lock.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LockReasonView {
    /// Name of the reason, for programs.
    #[cfg_attr(feature = "openapi", schema(example = "held"))]
    pub code: String,
    /// The reason as a sentence.
    pub text: String,
    /// Holder or waiter that the reason is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Token of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Mode of the lease or of the request: `exclusive` or `shared`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Position of a waiter in the queue, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Time of the grant, of the last renewal, of the arrival in the queue, or of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub since: Option<String>,
    /// Time at which the lease ends unless it is renewed, or at which the lock becomes free.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub until: Option<String>,
    /// Holder or waiter that a waiter waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// Actor of the reason, if not the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Command that helps with a lock.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct LockCommandView {
    /// What the command does, in a word or two.
    #[cfg_attr(feature = "openapi", schema(example = "wait"))]
    pub to: String,
    /// The command for a shell.
    pub command: String,
}

impl LockCommandView {
    pub(super) fn new(to: &str, command: String) -> Self {
        Self { to: to.to_owned(), command }
    }
}

impl LockExplanationView {
    /// Creates the view; `program` is the command line of `leasehold` up to the subcommand.
    pub fn new(explanation: &LockExplanation, program: &str) -> Self {
        let LockExplanation { status, reasons, remedies } = explanation;
        let command = |remedy: &LockRemedy| {
            LockCommandView::new(remedy.purpose(), remedy.command(program, &status.name))
        };
        Self {
            name: status.name.to_string(),
            lock: status.name.to_string(),
            now: exact(status.now),
            reasons: reasons.iter().map(|reason| LockReasonView::new(reason, status.now)).collect(),
            explanation: explanation.sentences(),
            commands: remedies.iter().map(command).collect(),
            status: status.clone(),
        }
    }
}

impl LockReasonView {
    fn new(reason: &LockReason, now: Timestamp) -> Self {
        let mut view = Self { code: reason.code().to_owned(), text: reason.text(now), ..Self::default() };
        match reason {
            LockReason::Held { holder, token, mode, since, until, .. } => {
                view.holder = Some(holder.to_string());
                view.token = Some(token.get());
                view.mode = Some(mode.to_string());
                (view.since, view.until) = (Some(exact(*since)), ends_at(*until));
            }
            LockReason::Renewals { holder, last, until, .. } => {
                view.holder = Some(holder.to_string());
                (view.since, view.until) = (Some(exact(*last)), ends_at(*until));
            }
            LockReason::Expired { holder, at } => {
                (view.holder, view.since) = (Some(holder.to_string()), Some(exact(*at)));
            }
            LockReason::ProcessExited { holder } => view.holder = Some(holder.to_string()),
            LockReason::Retained { holder, until } => {
                (view.holder, view.until) = (Some(holder.to_string()), ends_at(*until));
            }
            LockReason::ReleaseRequested { request, .. } => {
                (view.by, view.since) = (Some(request.by.to_string()), Some(exact(request.at)));
            }
            LockReason::Ended { holder, token, at, by, .. } => {
                view.holder = Some(holder.to_string());
                (view.token, view.since) = (Some(token.get()), Some(exact(*at)));
                view.by = by.as_ref().map(ToString::to_string);
            }
            LockReason::Waits { position, holder, mode, since, behind, .. } => {
                view.position = u64::try_from(*position).ok();
                view.holder = Some(holder.to_string());
                (view.mode, view.since) = (Some(mode.to_string()), Some(exact(*since)));
                view.behind = behind.first().map(ToString::to_string);
            }
            LockReason::FreedBy { .. } => view.until = reason.frees_at().and_then(ends_at),
            _ => {}
        }
        view
    }
}

fn exact(time: Timestamp) -> String {
    format!("{time:#}")
}

/// Returns the end of a lease; `None` for one that does not expire.
fn ends_at(time: Timestamp) -> Option<String> {
    (!time.is_endless()).then(|| exact(time))
}
