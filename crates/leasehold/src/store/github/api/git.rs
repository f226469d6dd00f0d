//! API calls for refs and commits.

use hyper::Method;
use serde::Deserialize;
use serde_json::json;

use super::client::{Api, Raw};
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::github::error;

/// Result of creating or moving a ref.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::github) enum RefUpdate {
    /// The ref points to the commit now.
    Done,
    /// The tip of the ref is not the expected one: another client was faster.
    Conflict,
    /// The ref does not exist any more.
    NotFound,
}

/// Ref and its tip.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(in crate::store::github) struct Ref {
    /// Full name: `refs/…`.
    #[serde(rename = "ref")]
    pub(in crate::store::github) name: String,
    #[serde(rename = "object")]
    pub(in crate::store::github) tip: Tip,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(in crate::store::github) struct Tip {
    pub(in crate::store::github) sha: String,
}

/// Commit, reduced to the field that leasehold reads.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::store::github) struct Commit {
    pub(in crate::store::github) message: String,
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
    pub(in crate::store::github) async fn newest_tree(&self) -> Result<String> {
        let raw = self.call(Method::GET, &self.path("/commits?per_page=1"), None).await?;
        if raw.status == 409 {
            return Err(self.empty_repository());
        }
        let listed = self.parse::<Vec<ListedCommit>>(&raw)?.value;
        listed.into_iter().next().map(|listed| listed.commit.tree.sha).ok_or_else(|| self.empty_repository())
    }

    /// Returns the tip of a ref `refs/…`; `None` if the ref does not exist.
    pub(in crate::store::github) async fn tip(&self, name: &str) -> Result<Option<String>> {
        let raw = self.call(Method::GET, &self.path(&format!("/git/ref/{}", short(name))), None).await?;
        let found = self.parse_if_found::<Ref>(&raw)?;
        Ok(found.map(|found| found.value.tip.sha))
    }

    /// Returns all refs that begin with `prefix`, which is `refs/…`. They arrive at once: the
    /// service has no pages for them.
    pub(in crate::store::github) async fn tips(&self, prefix: &str) -> Result<Vec<Ref>> {
        let path = self.path(&format!("/git/matching-refs/{}", short(prefix).trim_end_matches('/')));
        let raw = self.call(Method::GET, &path, None).await?;
        let mut found = self.parse::<Vec<Ref>>(&raw)?.value;
        found.retain(|found| found.name.starts_with(prefix));
        Ok(found)
    }

    pub(in crate::store::github) async fn commit(&self, sha: &str) -> Result<Commit> {
        let raw = self.call(Method::GET, &self.path(&format!("/git/commits/{sha}")), None).await?;
        self.parse(&raw).map(|commit| commit.value)
    }

    /// Creates a commit, which is not visible until a ref points to it.
    pub(in crate::store::github) async fn create_commit(
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
    pub(in crate::store::github) async fn create_ref(&self, name: &str, sha: &str) -> Result<RefUpdate> {
        let created = json!({ "ref": name, "sha": sha });
        let raw = self.call(Method::POST, &self.path("/git/refs"), Some(created)).await?;
        self.ref_update(&raw)
    }

    /// Moves a ref to a commit, if the ref's tip is an ancestor of the commit.
    pub(in crate::store::github) async fn move_ref(&self, name: &str, sha: &str) -> Result<RefUpdate> {
        let path = self.path(&format!("/git/refs/{}", short(name)));
        let raw = self.call(Method::PATCH, &path, Some(json!({ "sha": sha, "force": false }))).await?;
        self.ref_update(&raw)
    }

    /// Returns the own login; `None` for an App, to which GitHub cannot assign issues.
    pub(in crate::store::github) async fn login(&self) -> Result<Option<String>> {
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
            // Another machine of the service has not seen the commit yet, or another client is
            // changing the ref.
            409 | 422 => {
                let message = format!("the GitHub repository {} could not update a ref", self.repository());
                Err(Error::store(StoreErrorKind::Unavailable, message, "try again")
                    .because(self.error_response(raw)))
            }
            _ => Err(self.error_response(raw)),
        }
    }

    fn refs_not_writable(&self, raw: &Raw) -> Error {
        let message =
            format!("the GitHub repository {} does not let this token write refs", self.repository());
        Error::store(StoreErrorKind::NotPermitted, message, error::NO_CONTENTS)
            .because(self.error_response(raw))
    }

    fn empty_repository(&self) -> Error {
        let message = format!("the GitHub repository {} has no commit yet", self.repository());
        Error::store(
            StoreErrorKind::Misconfigured,
            message,
            "push one, such as a README: arbiter=ref makes commits with its tree",
        )
    }
}

/// Returns the name of a ref without `refs/`, as these calls expect it.
fn short(name: &str) -> &str {
    name.strip_prefix("refs/").unwrap_or(name)
}
