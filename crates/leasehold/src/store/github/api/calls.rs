//! Calls for the repository, its issues, comments, labels and assignees.

use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::{Api, Dated, Read};
use super::responses::{Comment, Issue, IssueEvent, Repository};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Timestamp, Ttl};

/// Maximum page size of GitHub.
const PAGE: usize = 100;
/// Maximum number of pages of a list; a longer list is not leasehold's.
const MAX_PAGES: usize = 30;
/// Maximum number of pages of recent comments that are read, and maximum age of a comment that
/// counts.
const RECENT_PAGES: usize = 5;
const RECENT: Ttl = Ttl::from_secs(24 * 3600);

impl Api {
    /// Returns the repository.
    pub(in crate::store::github) async fn get_repository(&self) -> Result<Repository> {
        let raw = self.call(Method::GET, &self.path(""), None).await?;
        self.parse(&raw).map(|dated| dated.value)
    }

    /// Returns the service's time, and records what is left of the budget; costs nothing of it.
    pub(in crate::store::github) async fn now(&self) -> Result<Timestamp> {
        let raw = self.call(Method::GET, "/rate_limit", None).await?;
        self.parse::<Value>(&raw).map(|dated| dated.now)
    }

    /// Returns one issue; `None` if it does not exist.
    pub(in crate::store::github) async fn issue(
        &self,
        number: u64,
        read: Read,
    ) -> Result<Option<Dated<Issue>>> {
        let raw = self.get(&self.path(&format!("/issues/{number}")), read).await?;
        self.parse_if_found(&raw)
    }

    /// Returns the issues with leasehold's label, including closed ones, oldest first.
    pub(in crate::store::github) async fn list_lock_issues(&self) -> Result<Dated<Vec<Issue>>> {
        self.list_labelled(&self.options.label, "all", Read::Fresh).await
    }

    /// Returns the issues with this label, oldest first; the state is `open`, or `all` to include
    /// closed ones.
    pub(in crate::store::github) async fn list_issues(
        &self,
        label: &str,
        state: &str,
    ) -> Result<Dated<Vec<Issue>>> {
        self.list_labelled(label, state, Read::IfChanged).await
    }

    async fn list_labelled(&self, label: &str, state: &str, read: Read) -> Result<Dated<Vec<Issue>>> {
        let label = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
        let query = format!("labels={label}&state={state}&sort=created&direction=asc");
        let mut listed: Dated<Vec<Issue>> = self.pages(&self.path("/issues"), &query, read).await?;
        listed.value.retain(|issue| issue.pull_request.is_none());
        Ok(listed)
    }

    /// Returns the events of an issue, oldest first.
    pub(in crate::store::github) async fn events(&self, number: u64) -> Result<Vec<IssueEvent>> {
        self.pages(&self.path(&format!("/issues/{number}/events")), "", Read::Fresh)
            .await
            .map(|listed| listed.value)
    }

    /// Adds a label to an issue; creates the label if it does not exist.
    pub(in crate::store::github) async fn add_label(&self, number: u64, label: &str) -> Result<()> {
        let path = self.path(&format!("/issues/{number}/labels"));
        let raw = self.call(Method::POST, &path, Some(json!({ "labels": [label] }))).await?;
        self.parse::<Value>(&raw).map(drop)
    }

    /// Removes a label from an issue; returns whether the issue had it.
    pub(in crate::store::github) async fn remove_label(&self, number: u64, label: &str) -> Result<bool> {
        let label = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
        let raw =
            self.call(Method::DELETE, &self.path(&format!("/issues/{number}/labels/{label}")), None).await?;
        self.parse_if_found::<Value>(&raw).map(|found| found.is_some())
    }

    /// Creates an issue with labels. GitHub leaves the labels out if the token has no push access.
    pub(in crate::store::github) async fn create_issue(
        &self,
        title: &str,
        body: &str,
        labels: &[&str],
    ) -> Result<Dated<Issue>> {
        let issue = json!({ "title": title, "body": body, "labels": labels });
        let raw = self.call(Method::POST, &self.path("/issues"), Some(issue)).await?;
        self.parse(&raw)
    }

    pub(in crate::store::github) async fn edit_issue(
        &self,
        number: u64,
        change: Value,
    ) -> Result<Dated<Issue>> {
        let raw = self.call(Method::PATCH, &self.path(&format!("/issues/{number}")), Some(change)).await?;
        self.parse(&raw)
    }

    /// Returns all comments of an issue, by ascending id; `None` if the issue does not exist.
    pub(in crate::store::github) async fn comments(
        &self,
        number: u64,
        read: Read,
    ) -> Result<Option<Dated<Vec<Comment>>>> {
        match self.pages(&self.path(&format!("/issues/{number}/comments")), "", read).await {
            Ok(listed) => Ok(Some(listed)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the comments of all issues that changed last, newest first: those of one day, but at
    /// most 500.
    pub(in crate::store::github) async fn recent_comments(&self) -> Result<Dated<Vec<Comment>>> {
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
    pub(in crate::store::github) async fn comment(&self, id: u64) -> Result<Option<Dated<Comment>>> {
        let raw = self.call(Method::GET, &self.path(&format!("/issues/comments/{id}")), None).await?;
        self.parse_if_found(&raw)
    }

    pub(in crate::store::github) async fn post_comment(
        &self,
        number: u64,
        body: &str,
    ) -> Result<Option<Dated<Comment>>> {
        let path = self.path(&format!("/issues/{number}/comments"));
        let raw = self.call(Method::POST, &path, Some(json!({ "body": body }))).await?;
        self.parse_if_found(&raw)
    }

    /// Edits a comment; returns `None` if it does not exist any more.
    pub(in crate::store::github) async fn edit_comment(
        &self,
        id: u64,
        body: &str,
    ) -> Result<Option<Dated<Comment>>> {
        let path = self.path(&format!("/issues/comments/{id}"));
        let raw = self.call(Method::PATCH, &path, Some(json!({ "body": body }))).await?;
        self.parse_if_found(&raw)
    }

    /// Deletes a comment; returns whether it existed.
    pub(in crate::store::github) async fn delete_comment(&self, id: u64) -> Result<bool> {
        let raw = self.call(Method::DELETE, &self.path(&format!("/issues/comments/{id}")), None).await?;
        match raw.status {
            204 => Ok(true),
            404 | 410 => Ok(false),
            _ => Err(self.error_response(&raw)),
        }
    }

    /// Adds an assignee. GitHub may silently leave it out; the returned issue shows the result.
    pub(in crate::store::github) async fn assign(&self, number: u64, login: &str) -> Result<Dated<Issue>> {
        self.assignees(Method::POST, number, &[login]).await
    }

    /// Whether issues can be assigned to this login.
    pub(in crate::store::github) async fn is_assignable(&self, login: &str) -> Result<bool> {
        let login = percent_encoding::utf8_percent_encode(login, percent_encoding::NON_ALPHANUMERIC);
        let raw = self.call(Method::GET, &self.path(&format!("/assignees/{login}")), None).await?;
        match raw.status {
            204 => Ok(true),
            404 => Ok(false),
            _ => Err(self.error_response(&raw)),
        }
    }

    pub(in crate::store::github) async fn unassign(
        &self,
        number: u64,
        logins: &[&str],
    ) -> Result<Dated<Issue>> {
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
        Err(self.list_too_long())
    }

    fn list_too_long(&self) -> Error {
        let message =
            format!("a list of the GitHub repository {} is longer than {MAX_PAGES} pages", self.repository());
        Error::store(StoreErrorKind::Misconfigured, message, "delete old issues or comments of leasehold")
    }
}

/// Whether the error means that the listed resource does not exist.
fn is_not_found(error: &Error) -> bool {
    let limits = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    limits.starts_with("404") || limits.starts_with("410")
}
