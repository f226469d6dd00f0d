//! One repository: its issues, comments and people.

use std::collections::BTreeMap;

use super::app::App;
use super::git::Git;
use super::switches::Ids;

/// A repository.
#[derive(Debug, Clone, Default)]
pub(in crate::engines::github) struct Repo {
    pub(in crate::engines::github) issues: BTreeMap<u64, Issue>,
    pub(in crate::engines::github) people: BTreeMap<String, Person>,
    pub(in crate::engines::github) app: Option<App>,
    pub(in crate::engines::github) git: Git,
    pub(super) made: u64,
}

/// Somebody who has a token: the login is in it.
#[derive(Debug, Clone)]
pub(in crate::engines::github) struct Person {
    pub(in crate::engines::github) is_bot: bool,
    pub(in crate::engines::github) association: &'static str,
    /// May be assigned, and assign.
    pub(in crate::engines::github) can_push: bool,
}

#[derive(Debug, Clone, Default)]
pub(in crate::engines::github) struct Issue {
    pub(in crate::engines::github) title: String,
    pub(in crate::engines::github) body: String,
    pub(in crate::engines::github) author: String,
    pub(in crate::engines::github) labels: Vec<String>,
    pub(in crate::engines::github) is_closed: bool,
    pub(in crate::engines::github) is_locked: bool,
    pub(in crate::engines::github) is_deleted: bool,
    pub(in crate::engines::github) assignees: Vec<String>,
    /// By id.
    pub(in crate::engines::github) comments: BTreeMap<u64, Comment>,
    /// As they were once.
    pub(super) before: BTreeMap<u64, Comment>,
    /// Who was assigned (or is no longer), by whom, when.
    pub(super) assignments: Vec<Assignment>,
    /// In seconds since 1970.
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

/// Somebody was assigned, or is no longer.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) adds: bool,
    pub(super) login: String,
    pub(super) by: String,
    pub(super) at: u64,
}

impl Repo {
    /// The next number of anything.
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

    /// The issue with this comment.
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
    pub(super) fn change(&mut self, now: u64) -> &mut BTreeMap<u64, Comment> {
        self.updated_at = now;
        &mut self.comments
    }
}
