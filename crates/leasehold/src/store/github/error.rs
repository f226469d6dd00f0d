//! Conversion of GitHub's responses into store errors.

use super::api::HttpError;
use crate::error::{Error, StoreErrorKind};

/// Status and message from GitHub, as far as users may see them.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct GithubError(String);

pub(super) const NO_TOKEN: &str =
    "set GITHUB_TOKEN or GH_TOKEN to a token that may read and write the repository's issues";

pub(super) const NO_CONTENTS: &str = "arbiter=ref needs a token that may read and write the repository's contents, of a login with push access";

/// Returns the error for a response with an error status: its meaning for the repository, and a
/// hint.
pub(super) fn from_response(repository: &str, status: u16, message: &str) -> Error {
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
    Error::store(kind, format!("the GitHub repository {repository} {problem}"), hint).because(source)
}

/// Returns the error for a request without a response.
pub(super) fn unreachable(repository: &str, error: HttpError) -> Error {
    let timed_out = matches!(error, HttpError::TimedOut);
    let problem = if timed_out { "did not answer in time" } else { "cannot be reached" };
    let message = format!("the GitHub repository {repository} {problem}");
    let hint = "try again; check the network, the address of the API, and githubstatus.com";
    Error::store(StoreErrorKind::Unavailable, message, hint).because(error)
}

/// Returns the error for a request that cannot be sent, because of its address or its token.
pub(super) fn invalid_request(repository: &str, error: hyper::http::Error) -> Error {
    let message = format!("requests to the GitHub repository {repository} are invalid");
    let hint = "check the address of the API, and that the token has no spaces or line breaks";
    Error::store(StoreErrorKind::Misconfigured, message, hint).because(error)
}

/// Returns the error for a response that does not match the description of the API.
pub(super) fn invalid_response(repository: &str, error: serde_json::Error) -> Error {
    let message = format!("the GitHub repository {repository} returned a response that cannot be parsed");
    Error::store(
        StoreErrorKind::Unavailable,
        message,
        "try again; check whether the address is that of the GitHub API",
    )
    .because(error)
}

/// Returns the error for a lock whose issue does not exist any more.
pub(super) fn no_issue(repository: &str, number: u64) -> Error {
    let message = format!("issue #{number} of the GitHub repository {repository} does not exist");
    Error::store(
        StoreErrorKind::Misconfigured,
        message,
        "check its number; it may have been deleted or moved",
    )
}

/// Returns the error for a lock whose issue a person has closed: such a lock must not be used.
pub(super) fn issue_closed(repository: &str, number: u64) -> Error {
    let message = format!("issue #{number} of the GitHub repository {repository} is closed");
    Error::store(StoreErrorKind::Misconfigured, message, "open it again to use its lock")
}
