//! Conversion of GitHub's responses into store errors.

use super::client::{Api, Raw};
use super::http::HttpError;
use crate::error::{Error, StoreErrorKind};

/// Status and message from GitHub, as far as users may see them.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct GithubError(String);

const NO_TOKEN: &str =
    "set GITHUB_TOKEN or GH_TOKEN to a token that may read and write the repository's issues";

const NO_CONTENTS: &str = "arbiter=ref needs a token that may read and write the repository's contents, of a login with push access";

impl Api {
    /// Returns an error about the repository.
    pub(crate) fn error(&self, kind: StoreErrorKind, problem: &str, hint: &str) -> Error {
        Error::store(kind, format!("the GitHub repository {} {problem}", self.repository()), hint)
    }

    /// Returns the error for a response with an error status.
    pub(crate) fn error_status(&self, status: u16, message: &str) -> Error {
        let (kind, problem, hint) = match status {
            401 => (StoreErrorKind::NotPermitted, "rejects this token", NO_TOKEN),
            403 if message.to_lowercase().contains("locked") => (
                StoreErrorKind::NotPermitted,
                "has locked the conversation of this issue",
                "unlock it, or use a token that may write to locked conversations",
            ),
            403 => (
                StoreErrorKind::NotPermitted,
                "denies this token the operation",
                "give the token the permissions in docs/engines/github.md: issues, read and write; contents too for arbiter=ref",
            ),
            404 => (
                StoreErrorKind::Misconfigured,
                "does not exist, or this token has no access to it",
                "check the name of the repository and the permissions of the token",
            ),
            410 => (
                StoreErrorKind::Misconfigured,
                "has no issues",
                "switch issues on in the settings of the repository",
            ),
            301 | 302 | 307 | 308 => {
                (StoreErrorKind::Misconfigured, "has moved", "use its new name in the store URL")
            }
            422 => (StoreErrorKind::Broken, "rejected a request as invalid", "please report this"),
            500..=599 => (StoreErrorKind::Unavailable, "has a problem", "try again; check githubstatus.com"),
            _ => (
                StoreErrorKind::Broken,
                "returned an unexpected status",
                "check whether the address is that of the GitHub API",
            ),
        };
        let source = GithubError(format!("{status}: {}", message.lines().next().unwrap_or_default()));
        self.error(kind, problem, hint).because(source)
    }

    pub(super) fn error_response(&self, raw: &Raw) -> Error {
        self.error_status(raw.status, &Self::reason(raw))
    }

    /// Returns the error for a request without a response.
    pub(super) fn unreachable(&self, error: HttpError) -> Error {
        let timed_out = matches!(error, HttpError::TimedOut);
        let problem = if timed_out { "did not answer in time" } else { "cannot be reached" };
        let hint = "try again; check the network, the address of the API, and githubstatus.com";
        self.error(StoreErrorKind::Unavailable, problem, hint).because(error)
    }

    /// Returns the error for a write that was not sent, because its turn came too late.
    pub(super) fn too_late(&self) -> Error {
        let hint = "try again; other writes of this process are waiting for their turns";
        self.error(StoreErrorKind::Unavailable, "could not be written in time", hint)
    }

    /// Returns the error for a response without a date. A proxy that answers for GitHub may leave it
    /// out.
    pub(super) fn no_date(&self, status: u16) -> Error {
        if status >= 500 {
            return self.error_status(status, "");
        }
        let message =
            format!("the responses of the GitHub repository {} have no Date header", self.repository());
        Error::store(StoreErrorKind::Misconfigured, message, "let the proxy in between pass that header on")
    }

    /// Returns the error for a request that cannot be sent, because of its address or its token.
    pub(super) fn invalid_request(&self, error: hyper::http::Error) -> Error {
        let message = format!("requests to the GitHub repository {} are invalid", self.repository());
        let hint = "check the address of the API, and that the token has no spaces or line breaks";
        Error::store(StoreErrorKind::Misconfigured, message, hint).because(error)
    }

    /// Returns the error for a response that does not match the description of the API.
    pub(super) fn invalid_response(&self, error: serde_json::Error) -> Error {
        let hint = "try again; check whether the address is that of the GitHub API";
        let problem = "returned a response that cannot be parsed";
        self.error(StoreErrorKind::Unavailable, problem, hint).because(error)
    }

    pub(super) fn no_token(&self) -> Error {
        let message = format!("no token is set for the GitHub repository {}", self.repository());
        Error::store(StoreErrorKind::Misconfigured, message, NO_TOKEN)
    }

    /// Returns the error for a repository whose refs cannot be written.
    pub(crate) fn no_contents(&self, problem: &str) -> Error {
        self.error(StoreErrorKind::NotPermitted, problem, NO_CONTENTS)
    }

    pub(super) fn empty_repository(&self) -> Error {
        let hint = "push one, such as a README: arbiter=ref makes commits with its tree";
        self.error(StoreErrorKind::Misconfigured, "has no commit yet", hint)
    }

    /// Returns the error for a lock whose issue does not exist any more.
    pub(crate) fn no_issue(&self, number: u64) -> Error {
        self.unusable_issue(number, "does not exist", "check its number; it may have been deleted or moved")
    }

    /// Returns the error for a lock whose issue a person has closed: such a lock must not be used.
    pub(crate) fn issue_closed(&self, number: u64) -> Error {
        self.unusable_issue(number, "is closed", "open it again to use its lock")
    }

    fn unusable_issue(&self, number: u64, problem: &str, hint: &str) -> Error {
        let message = format!("issue #{number} of the GitHub repository {} {problem}", self.repository());
        Error::store(StoreErrorKind::Misconfigured, message, hint)
    }
}
