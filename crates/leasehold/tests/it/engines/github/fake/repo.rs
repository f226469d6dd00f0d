//! One repository: its issues, comments and people.

use std::collections::BTreeMap;

use super::app::App;
use super::faults::Ids;
use super::git::Git;

/// Repository.
#[derive(Debug, Clone, Default)]
pub(in crate::engines::github) struct Repo {
    pub(in crate::engines::github) issues: BTreeMap<u64, Issue>,
    pub(in crate::engines::github) people: BTreeMap<String, Person>,
    pub(in crate::engines::github) app: Option<App>,
    pub(in crate::engines::github) git: Git,
    pub(super) made: u64,
}

/// Account with a token, which contains the login.
#[derive(Debug, Clone)]
pub(in crate::engines::github) struct Person {
    pub(in crate::engines::github) is_bot: bool,
    pub(in crate::engines::github) association: &'static str,
    /// Whether the account can assign issues, and be assigned.
    pub(in crate::engines::github) can_push: bool,
}

#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent property of an issue")]
pub(in crate::engines::github) struct Issue {
    pub(in crate::engines::github) title: String,
    pub(in crate::engines::github) body: String,
    pub(in crate::engines::github) author: String,
    pub(in crate::engines::github) labels: Vec<String>,
    pub(in crate::engines::github) is_closed: bool,
    pub(in crate::engines::github) state_reason: Option<String>,
    pub(in crate::engines::github) is_pull_request: bool,
    /// Events: kind, label if the event is about one, and time.
    pub(super) events: Vec<(&'static str, Option<String>, u64)>,
    pub(super) closed_at: Option<u64>,
    pub(in crate::engines::github) is_locked: bool,
    pub(in crate::engines::github) is_deleted: bool,
    pub(in crate::engines::github) assignees: Vec<String>,
    /// Comments by id.
    pub(in crate::engines::github) comments: BTreeMap<u64, Comment>,
    /// Comments at an earlier time, for stale lists.
    pub(super) before: BTreeMap<u64, Comment>,
    /// Assignments and unassignments, in order.
    pub(super) assignments: Vec<Assignment>,
    /// Time in seconds since 1970.
    pub(super) created_at: u64,
    pub(super) updated_at: u64,
}

#[derive(Debug, Clone)]
pub(in crate::engines::github) struct Comment {
    pub(in crate::engines::github) body: String,
    pub(in crate::engines::github) author: String,
    pub(super) created_at: u64,
    pub(super) updated_at: u64,
}

/// Assignment of an account, or its removal.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) adds: bool,
    pub(super) login: String,
    pub(super) by: String,
    pub(super) at: u64,
}

impl Repo {
    /// Returns the next id of a comment.
    pub(super) fn next_id(&mut self, ids: Ids) -> u64 {
        self.made += 1;
        match ids {
            Ids::Rising => 1_000_000 + self.made,
            Ids::Falling => 1_000_000 - self.made,
        }
    }

    pub(super) fn new_issue(&mut self) -> u64 {
        self.issues.keys().next_back().copied().unwrap_or(0) + 1
    }

    /// Returns the issue with this comment.
    pub(super) fn issue_of(&mut self, comment: u64) -> Option<&mut Issue> {
        self.issues.values_mut().find(|issue| !issue.is_deleted && issue.comments.contains_key(&comment))
    }

    pub(super) fn is_insider(&self, login: &str) -> bool {
        self.people
            .get(login)
            .is_some_and(|person| ["OWNER", "MEMBER", "COLLABORATOR"].contains(&person.association))
    }

    pub(super) fn can_push(&self, login: &str) -> bool {
        self.people.get(login).is_some_and(|person| person.can_push)
    }
}

impl Issue {
    /// Closes the issue for a reason, or reopens it.
    pub(super) fn set_closed(&mut self, reason: Option<&str>, now: u64) {
        let closes = reason.is_some();
        if self.is_closed == closes {
            return;
        }
        self.is_closed = closes;
        self.state_reason = Some(reason.unwrap_or("reopened").to_owned());
        self.closed_at = closes.then_some(now);
        self.updated_at = now;
        self.events.push((if closes { "closed" } else { "reopened" }, None, now));
    }

    /// Removes a label; returns whether the issue had it.
    pub(super) fn remove_label(&mut self, label: &str, now: u64) -> bool {
        let before = self.labels.len();
        self.labels.retain(|name| !name.eq_ignore_ascii_case(label));
        let was_there = self.labels.len() < before;
        if was_there {
            self.updated_at = now;
            self.events.push(("unlabeled", Some(label.to_owned()), now));
        }
        was_there
    }

    pub(super) fn add_label(&mut self, label: &str, now: u64) {
        if !self.labels.iter().any(|name| name.eq_ignore_ascii_case(label)) {
            self.labels.push(label.to_owned());
            self.updated_at = now;
            self.events.push(("labeled", Some(label.to_owned()), now));
        }
    }

    pub(super) fn change(&mut self, now: u64) -> &mut BTreeMap<u64, Comment> {
        self.updated_at = now;
        &mut self.comments
    }
}
