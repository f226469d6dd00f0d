//! API calls for refs and commits.

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::super::api::{Api, Raw};
use super::super::trouble;
use crate::error::{Error, Result, StoreErrorKind};

/// Result of creating or moving a ref.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// The ref points to the commit now.
    Yes,
    /// The tip of the ref is not the expected one: another client was faster.
    Elsewhere,
    /// The ref does not exist any more.
    Gone,
}

/// Ref and its tip.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Ref {
    /// Full name: `refs/…`.
    #[serde(rename = "ref")]
    pub(super) name: String,
    #[serde(rename = "object")]
    pub(super) tip: Tip,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Tip {
    pub(super) sha: String,
}

/// Commit, reduced to the field that leasehold reads.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Commit {
    pub(super) message: String,
}

#[derive(Deserialize)]
struct Made {
    sha: String,
}

#[derive(Deserialize)]
struct Listed {
    commit: Planted,
}

#[derive(Deserialize)]
struct Planted {
    tree: Made,
}

#[derive(Deserialize)]
struct Somebody {
    login: String,
}

impl Api {
    /// Returns the tree of the newest commit: a commit has to have a tree, and leasehold's commits
    /// change nothing in it.
    pub(super) async fn newest_tree(&self) -> Result<String> {
        let raw = self.call(Method::GET, &self.path("/commits?per_page=1"), None).await?;
        if raw.status == 409 {
            return Err(self.is_empty());
        }
        let listed = self.read::<Vec<Listed>>(&raw)?.what;
        listed.into_iter().next().map(|listed| listed.commit.tree.sha).ok_or_else(|| self.is_empty())
    }

    /// Returns the tip of a ref `refs/…`; `None` if the ref does not exist.
    pub(super) async fn tip(&self, name: &str) -> Result<Option<String>> {
        let raw = self.call(Method::GET, &self.path(&format!("/git/ref/{}", short(name))), None).await?;
        let found = self.read_if_there::<Ref>(&raw)?;
        Ok(found.map(|found| found.what.tip.sha))
    }

    /// Returns all refs that begin with `beginning`, which is `refs/…`. They arrive at once: the
    /// service has no pages for them.
    pub(super) async fn tips(&self, beginning: &str) -> Result<Vec<Ref>> {
        let path = self.path(&format!("/git/matching-refs/{}", short(beginning).trim_end_matches('/')));
        let raw = self.call(Method::GET, &path, None).await?;
        let mut found = self.read::<Vec<Ref>>(&raw)?.what;
        found.retain(|found| found.name.starts_with(beginning));
        Ok(found)
    }

    pub(super) async fn commit(&self, sha: &str) -> Result<Commit> {
        let raw = self.call(Method::GET, &self.path(&format!("/git/commits/{sha}")), None).await?;
        self.read(&raw).map(|commit| commit.what)
    }

    /// Creates a commit, which is not visible until a ref points to it.
    pub(super) async fn create_commit(
        &self,
        message: &str,
        tree: &str,
        parent: Option<&str>,
    ) -> Result<String> {
        let parents: Vec<_> = parent.into_iter().collect();
        let asked = json!({ "message": message, "tree": tree, "parents": parents });
        let raw = self.call(Method::POST, &self.path("/git/commits"), Some(asked)).await?;
        match raw.status {
            403 | 404 => Err(self.may_not_write(&raw)),
            _ => self.read::<Made>(&raw).map(|made| made.what.sha),
        }
    }

    /// Creates a ref, if it does not exist.
    pub(super) async fn create_ref(&self, name: &str, sha: &str) -> Result<Moved> {
        let asked = json!({ "ref": name, "sha": sha });
        let raw = self.call(Method::POST, &self.path("/git/refs"), Some(asked)).await?;
        self.moved(&raw)
    }

    /// Moves a ref to a commit, if the ref's tip is an ancestor of the commit.
    pub(super) async fn move_ref(&self, name: &str, sha: &str) -> Result<Moved> {
        let path = self.path(&format!("/git/refs/{}", short(name)));
        let raw = self.call(Method::PATCH, &path, Some(json!({ "sha": sha, "force": false }))).await?;
        self.moved(&raw)
    }

    /// Returns the own login; `None` for an App, to which GitHub cannot assign issues.
    pub(in super::super) async fn login(&self) -> Result<Option<String>> {
        let raw = self.call(Method::GET, "/user", None).await?;
        match raw.status {
            403 => Ok(None),
            _ => Ok(self.read_if_there::<Somebody>(&raw)?.map(|me| me.what.login)),
        }
    }

    fn moved(&self, raw: &Raw) -> Result<Moved> {
        let reason = Self::reason(raw).to_lowercase();
        match raw.status {
            200 | 201 => Ok(Moved::Yes),
            403 | 404 => Err(self.may_not_write(raw)),
            409 if reason.contains("empty") => Err(self.is_empty()),
            422 if reason.contains("reference does not exist") => Ok(Moved::Gone),
            422 if reason.contains("fast forward") || reason.contains("already exists") => {
                Ok(Moved::Elsewhere)
            }
            // Another machine of the service has not seen the commit yet, or another client is
            // changing the ref.
            409 | 422 => {
                let message =
                    format!("the GitHub repository {} could not move a ref just now", self.repository());
                Err(Error::store(StoreErrorKind::Unavailable, message, "try again")
                    .because(self.refused(raw)))
            }
            _ => Err(self.refused(raw)),
        }
    }

    fn may_not_write(&self, raw: &Raw) -> Error {
        let message =
            format!("the GitHub repository {} does not let this token write refs", self.repository());
        Error::store(StoreErrorKind::NotPermitted, message, trouble::NO_CONTENTS).because(self.refused(raw))
    }

    fn is_empty(&self) -> Error {
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
