//! Calls for the repository, its issues, comments, labels and assignees, its refs and commits.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::{Api, Dated, Raw, Read};
use super::responses::{Comment, Issue, IssueEvent, Repository};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Timestamp, Ttl};
use crate::store::BootInstant;

/// Maximum page size of GitHub.
pub(crate) const PAGE: usize = 100;
/// Maximum number of pages of a list of comments or events; a longer list is not leasehold's.
const MAX_PAGES: usize = 30;
/// Maximum number of pages of a list of issues.
const MAX_ISSUE_PAGES: usize = 1000;
/// Resolution of the times in GitHub's responses.
const RESOLUTION: Duration = Duration::from_secs(1);
/// Maximum number of times that the comments of an issue are listed while comments are deleted.
const MAX_LISTS: usize = 5;
/// Maximum number of times that an edit of an issue is sent.
const MAX_EDITS: u32 = 3;
/// Maximum number of pages of recent comments, and maximum age of such a comment.
const RECENT_PAGES: usize = 5;
const RECENT: Ttl = Ttl::from_secs(24 * 3600);

impl Api {
    pub(crate) async fn get_repository(&self) -> Result<Repository> {
        let raw = self.call(Method::GET, &self.path(""), None).await?;
        self.parse(&raw).map(|dated| dated.value)
    }

    /// Returns the service's time, and records what is left of the rate limit; costs nothing of it.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        let raw = self.call(Method::GET, "/rate_limit", None).await?;
        self.parse::<Value>(&raw).map(|dated| dated.now)
    }

    /// Returns one issue; `None` if it does not exist.
    pub(crate) async fn issue(&self, number: u64, read: Read) -> Result<Option<Dated<Issue>>> {
        let raw = self.get(&self.path(&format!("/issues/{number}")), read).await?;
        self.parse_if_found(&raw)
    }

    /// Returns the issues with leasehold's label, including closed ones, oldest first.
    pub(crate) async fn list_lock_issues(&self) -> Result<Dated<Vec<Issue>>> {
        self.list_labelled(&self.options.label, "all", Read::Fresh).await
    }

    /// Returns the issues with this label, oldest first; the state is `open`, or `all` to include
    /// closed ones.
    pub(crate) async fn list_issues(&self, label: &str, state: &str) -> Result<Dated<Vec<Issue>>> {
        self.list_labelled(label, state, Read::IfChanged).await
    }

    /// Lists issues by the time of their last change, and continues each page after the last issue
    /// of the page before. GitHub refuses high page numbers; and by page numbers, a list lacks an
    /// issue if another one leaves it between two pages.
    async fn list_labelled(&self, label: &str, state: &str, read: Read) -> Result<Dated<Vec<Issue>>> {
        let label = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
        let path = self.path("/issues");
        let query = format!("labels={label}&state={state}&sort=updated&direction=asc&per_page={PAGE}");
        let (mut listed, mut first) = (BTreeMap::<u64, Issue>::new(), None);
        let (mut since, mut page) = (None::<Timestamp>, 1);
        for _ in 0..MAX_ISSUE_PAGES {
            let after = since.map(|since| format!("&since={since}")).unwrap_or_default();
            let raw = self.get(&format!("{path}?{query}{after}&page={page}"), read).await?;
            let Dated { value, now } = self.parse::<Vec<Issue>>(&raw)?;
            let (count, now) = (value.len(), *first.get_or_insert(now));
            // GitHub lists what has changed after this time: also the last issue, and others of the
            // same second, once more.
            let next = value.last().map(|issue| issue.updated_at.minus(RESOLUTION));
            listed.extend(value.into_iter().map(|issue| (issue.number, issue)));
            if count < PAGE {
                let issues = listed.into_values().filter(|issue| issue.pull_request.is_none());
                return Ok(Dated { value: issues.collect(), now });
            }
            (since, page) = if next > since { (next, 1) } else { (since, page + 1) };
        }
        Err(self.list_too_long(MAX_ISSUE_PAGES))
    }

    /// Returns the events of an issue, oldest first.
    pub(crate) async fn events(&self, number: u64) -> Result<Vec<IssueEvent>> {
        self.pages(&self.path(&format!("/issues/{number}/events")), "", Read::Fresh)
            .await
            .map(|listed| listed.value)
    }

    /// Adds a label to an issue; creates the label if it does not exist.
    pub(crate) async fn add_label(&self, number: u64, label: &str) -> Result<()> {
        let path = self.path(&format!("/issues/{number}/labels"));
        let raw = self.call(Method::POST, &path, Some(json!({ "labels": [label] }))).await?;
        self.parse::<Value>(&raw).map(drop)
    }

    /// Removes a label from an issue; returns whether the issue had it.
    pub(crate) async fn remove_label(&self, number: u64, label: &str) -> Result<bool> {
        let label = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
        let raw =
            self.call(Method::DELETE, &self.path(&format!("/issues/{number}/labels/{label}")), None).await?;
        self.parse_if_found::<Value>(&raw).map(|found| found.is_some())
    }

    /// Creates an issue with labels. GitHub leaves the labels out if the token has no push access.
    pub(crate) async fn create_issue(
        &self,
        title: &str,
        body: &str,
        labels: &[&str],
    ) -> Result<Dated<Issue>> {
        let issue = json!({ "title": title, "body": body, "labels": labels });
        let raw = self.call(Method::POST, &self.path("/issues"), Some(issue)).await?;
        self.parse(&raw)
    }

    /// Edits an issue; if there is a deadline, before that or not at all.
    pub(crate) async fn edit_issue(
        &self,
        number: u64,
        change: Value,
        deadline: Option<BootInstant>,
    ) -> Result<Dated<Issue>> {
        let path = self.path(&format!("/issues/{number}"));
        let raw = self.call_with(Method::PATCH, &path, Some(change), None, deadline).await?;
        self.parse(&raw)
    }

    /// Edits an issue. If that fails, sends the same edit again: GitHub may have executed an edit without
    /// a response, and then the repetition changes nothing. No edit is sent at or after `deadline`.
    pub(crate) async fn edit_issue_repeatedly(
        &self,
        number: u64,
        change: &Value,
        deadline: BootInstant,
    ) -> Result<Dated<Issue>> {
        for attempt in 1..MAX_EDITS {
            match self.edit_issue(number, change.clone(), Some(deadline)).await {
                Err(error) if error.is_retryable() && BootInstant::now() < deadline => {
                    tracing::debug!(issue = number, %error, "repeating an edit that failed");
                    self.backoff(attempt).await;
                }
                edited => return edited,
            }
        }
        self.edit_issue(number, change.clone(), Some(deadline)).await
    }

    /// Returns all comments of an issue, by ascending id; `None` if the issue does not exist. If a
    /// comment is deleted between two pages, the later comments move up, and one of them is on
    /// neither page. So a list of several pages is complete only if the next list still has all its
    /// comments; the result has the time of the complete list, and the newer content.
    pub(crate) async fn comments(&self, number: u64, read: Read) -> Result<Option<Dated<Vec<Comment>>>> {
        let path = self.path(&format!("/issues/{number}/comments"));
        let mut before: Option<Dated<Vec<Comment>>> = None;
        for _ in 0..MAX_LISTS {
            let listed = match self.pages::<Comment>(&path, "", read).await {
                Ok(listed) => listed,
                Err(error) if is_not_found(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            if listed.value.len() < PAGE {
                return Ok(Some(listed));
            }
            let ids: HashSet<u64> = listed.value.iter().map(|comment| comment.id).collect();
            if let Some(before) = &before
                && before.value.iter().all(|comment| ids.contains(&comment.id))
            {
                return Ok(Some(Dated { value: listed.value, now: before.now }));
            }
            before = Some(listed);
        }
        let problem = format!("lists other comments of issue #{number} with every read");
        Err(self.error(StoreErrorKind::Unavailable, &problem, "try again"))
    }

    /// Returns the comments of all issues that changed last, newest first: those of one day, but at
    /// most 500.
    pub(crate) async fn recent_comments(&self) -> Result<Dated<Vec<Comment>>> {
        let path = self.path("/issues/comments");
        let (mut all, mut first) = (Vec::<Comment>::new(), None);
        for page in 1..=RECENT_PAGES {
            let path = format!("{path}?sort=updated&direction=desc&per_page={PAGE}&page={page}");
            let raw = self.get(&path, Read::IfChanged).await?;
            let Dated { value, now } = self.parse::<Vec<Comment>>(&raw)?;
            let (count, now) = (value.len(), *first.get_or_insert(now));
            all.extend(value);
            let is_old = all.last().is_none_or(|comment| comment.updated_at.plus(RECENT) < now);
            if count < PAGE || is_old {
                break;
            }
        }
        let now = first.expect("there is a first page");
        all.retain(|comment| now <= comment.updated_at.plus(RECENT));
        Ok(Dated { value: all, now })
    }

    /// Returns one comment; `None` if it does not exist.
    pub(crate) async fn comment(&self, id: u64) -> Result<Option<Dated<Comment>>> {
        let raw = self.call(Method::GET, &self.path(&format!("/issues/comments/{id}")), None).await?;
        self.parse_if_found(&raw)
    }

    pub(crate) async fn post_comment(&self, number: u64, body: &str) -> Result<Option<Dated<Comment>>> {
        let path = self.path(&format!("/issues/{number}/comments"));
        let raw = self.call(Method::POST, &path, Some(json!({ "body": body }))).await?;
        self.parse_if_found(&raw)
    }

    /// Edits a comment; returns `None` if it does not exist any more.
    pub(crate) async fn edit_comment(&self, id: u64, body: &str) -> Result<Option<Dated<Comment>>> {
        let path = self.path(&format!("/issues/comments/{id}"));
        let raw = self.call(Method::PATCH, &path, Some(json!({ "body": body }))).await?;
        self.parse_if_found(&raw)
    }

    /// Deletes a comment; returns whether it existed.
    pub(crate) async fn delete_comment(&self, id: u64) -> Result<bool> {
        let raw = self.call(Method::DELETE, &self.path(&format!("/issues/comments/{id}")), None).await?;
        match raw.status {
            204 => Ok(true),
            404 | 410 => Ok(false),
            _ => Err(self.error_response(&raw)),
        }
    }

    /// Adds an assignee. GitHub may silently leave it out; the returned issue shows the result.
    pub(crate) async fn assign(&self, number: u64, login: &str) -> Result<Dated<Issue>> {
        self.assignees(Method::POST, number, &[login]).await
    }

    pub(crate) async fn is_assignable(&self, login: &str) -> Result<bool> {
        let login = percent_encoding::utf8_percent_encode(login, percent_encoding::NON_ALPHANUMERIC);
        let raw = self.call(Method::GET, &self.path(&format!("/assignees/{login}")), None).await?;
        match raw.status {
            204 => Ok(true),
            404 => Ok(false),
            _ => Err(self.error_response(&raw)),
        }
    }

    pub(crate) async fn unassign(&self, number: u64, logins: &[&str]) -> Result<Dated<Issue>> {
        self.assignees(Method::DELETE, number, logins).await
    }

    async fn assignees(&self, method: Method, number: u64, logins: &[&str]) -> Result<Dated<Issue>> {
        let path = self.path(&format!("/issues/{number}/assignees"));
        let raw = self.call(method, &path, Some(json!({ "assignees": logins }))).await?;
        self.parse(&raw)
    }

    /// Returns all pages of a list. Its time is that of the first page: everything that was written
    /// before that time is in the list.
    async fn pages<T: DeserializeOwned>(&self, path: &str, query: &str, read: Read) -> Result<Dated<Vec<T>>> {
        let mut all = Vec::new();
        let mut first = None;
        for page in 1..=MAX_PAGES {
            let raw = self.get(&format!("{path}?{query}&per_page={PAGE}&page={page}"), read).await?;
            let Dated { value, now } = self.parse::<Vec<T>>(&raw)?;
            let (count, now) = (value.len(), *first.get_or_insert(now));
            all.extend(value);
            if count < PAGE {
                return Ok(Dated { value: all, now });
            }
        }
        Err(self.list_too_long(MAX_PAGES))
    }

    fn list_too_long(&self, pages: usize) -> Error {
        let problem = format!("has a list of more than {pages} pages");
        let hint = "delete old issues or comments of leasehold";
        self.error(StoreErrorKind::Misconfigured, &problem, hint)
    }
}

/// Whether the error means that the listed resource does not exist.
fn is_not_found(error: &Error) -> bool {
    let limits = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    limits.starts_with("404") || limits.starts_with("410")
}

/// Result of creating or moving a ref.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefUpdate {
    /// The ref points to the commit now.
    Done,
    /// The tip of the ref is not the expected one: another client was faster.
    Conflict,
    /// The ref does not exist any more.
    NotFound,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Ref {
    /// Full name: `refs/…`.
    #[serde(rename = "ref")]
    pub(crate) name: String,
    #[serde(rename = "object")]
    pub(crate) tip: Tip,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Tip {
    pub(crate) sha: String,
}

/// Commit, reduced to the field that leasehold reads.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Commit {
    pub(crate) message: String,
}

#[derive(Deserialize)]
struct CreatedCommit {
    sha: String,
}

#[derive(Deserialize)]
struct ListedCommit {
    commit: CommitTree,
}

#[derive(Deserialize)]
struct CommitTree {
    tree: CreatedCommit,
}

#[derive(Deserialize)]
struct AuthenticatedUser {
    login: String,
}

impl Api {
    /// Returns the tree of the newest commit: a commit has to have a tree, and leasehold's commits
    /// change nothing in it.
    pub(crate) async fn newest_tree(&self) -> Result<String> {
        let raw = self.call(Method::GET, &self.path("/commits?per_page=1"), None).await?;
        if raw.status == 409 {
            return Err(self.empty_repository());
        }
        let listed = self.parse::<Vec<ListedCommit>>(&raw)?.value;
        listed.into_iter().next().map(|listed| listed.commit.tree.sha).ok_or_else(|| self.empty_repository())
    }

    /// Returns the tip of a ref `refs/…`; `None` if the ref does not exist.
    pub(crate) async fn tip(&self, name: &str) -> Result<Option<String>> {
        let raw = self.call(Method::GET, &self.path(&format!("/git/ref/{}", short(name))), None).await?;
        let found = self.parse_if_found::<Ref>(&raw)?;
        Ok(found.map(|found| found.value.tip.sha))
    }

    /// Returns all refs that begin with `prefix`, which is `refs/…`. They arrive at once: the
    /// service has no pages for them.
    pub(crate) async fn tips(&self, prefix: &str) -> Result<Vec<Ref>> {
        let path = self.path(&format!("/git/matching-refs/{}", short(prefix).trim_end_matches('/')));
        let raw = self.call(Method::GET, &path, None).await?;
        let mut found = self.parse::<Vec<Ref>>(&raw)?.value;
        found.retain(|found| found.name.starts_with(prefix));
        Ok(found)
    }

    pub(crate) async fn commit(&self, sha: &str) -> Result<Commit> {
        let raw = self.call(Method::GET, &self.path(&format!("/git/commits/{sha}")), None).await?;
        self.parse(&raw).map(|commit| commit.value)
    }

    /// Creates a commit, which is not visible until a ref points to it.
    pub(crate) async fn create_commit(
        &self,
        message: &str,
        tree: &str,
        parent: Option<&str>,
    ) -> Result<String> {
        let parents: Vec<_> = parent.into_iter().collect();
        let commit = json!({ "message": message, "tree": tree, "parents": parents });
        let raw = self.call(Method::POST, &self.path("/git/commits"), Some(commit)).await?;
        match raw.status {
            403 | 404 => Err(self.refs_not_writable(&raw)),
            _ => self.parse::<CreatedCommit>(&raw).map(|made| made.value.sha),
        }
    }

    /// Creates a ref, if it does not exist.
    pub(crate) async fn create_ref(&self, name: &str, sha: &str) -> Result<RefUpdate> {
        let created = json!({ "ref": name, "sha": sha });
        let raw = self.call(Method::POST, &self.path("/git/refs"), Some(created)).await?;
        self.ref_update(&raw)
    }

    /// Moves a ref to a commit, if the ref's tip is an ancestor of the commit.
    pub(crate) async fn move_ref(&self, name: &str, sha: &str) -> Result<RefUpdate> {
        let path = self.path(&format!("/git/refs/{}", short(name)));
        let raw = self.call(Method::PATCH, &path, Some(json!({ "sha": sha, "force": false }))).await?;
        self.ref_update(&raw)
    }

    /// Returns the own login; `None` for an App, to which GitHub cannot assign issues.
    pub(crate) async fn login(&self) -> Result<Option<String>> {
        let raw = self.call(Method::GET, "/user", None).await?;
        match raw.status {
            403 => Ok(None),
            _ => Ok(self.parse_if_found::<AuthenticatedUser>(&raw)?.map(|me| me.value.login)),
        }
    }

    fn ref_update(&self, raw: &Raw) -> Result<RefUpdate> {
        let reason = Self::reason(raw).to_lowercase();
        match raw.status {
            200 | 201 => Ok(RefUpdate::Done),
            403 | 404 => Err(self.refs_not_writable(raw)),
            409 if reason.contains("empty") => Err(self.empty_repository()),
            422 if reason.contains("reference does not exist") => Ok(RefUpdate::NotFound),
            422 if reason.contains("fast forward") || reason.contains("already exists") => {
                Ok(RefUpdate::Conflict)
            }
            // The service has not seen the commit everywhere, or another client is changing the ref.
            409 | 422 => {
                let error = self.error(StoreErrorKind::Unavailable, "could not update a ref", "try again");
                Err(error.because(self.error_response(raw)))
            }
            _ => Err(self.error_response(raw)),
        }
    }

    fn refs_not_writable(&self, raw: &Raw) -> Error {
        self.no_contents("does not let this token write refs").because(self.error_response(raw))
    }
}

/// Returns the name of a ref without `refs/`, as these calls expect it.
fn short(name: &str) -> &str {
    name.strip_prefix("refs/").unwrap_or(name)
}
