//! Conversion of GitHub's responses into store errors.

use crate::error::{Error, StoreErrorKind};

/// Status and message from GitHub, as far as users may see them.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(String);

pub(super) const NO_TOKEN: &str =
    "set GITHUB_TOKEN or GH_TOKEN to a token that may read and write the repository's issues";

pub(super) const NO_CONTENTS: &str = "arbiter=ref needs a token that may read and write the repository's contents, of a login with push access";

/// Returns the error for a response with an error status: its meaning for the repository, and a
/// hint.
pub(super) fn refused(repository: &str, status: u16, message: &str) -> Error {
    let (trouble, what, hint) = match status {
        401 => (StoreErrorKind::NotPermitted, "does not know this token", NO_TOKEN),
        403 if message.to_lowercase().contains("locked") => (
            StoreErrorKind::NotPermitted,
            "has locked the conversation of this issue",
            "unlock it, or use a token that may write to locked conversations",
        ),
        403 => (
            StoreErrorKind::NotPermitted,
            "does not let this token do that",
            "let it have the permissions in docs/engines/github.md: issues, read and write; contents too for arbiter=ref",
        ),
        404 => (
            StoreErrorKind::Misconfigured,
            "is not there, or this token may not see it",
            "look at the name of the repository and at what the token may see",
        ),
        410 => (
            StoreErrorKind::Misconfigured,
            "has no issues",
            "switch issues on in the settings of the repository",
        ),
        301 | 302 | 307 | 308 => {
            (StoreErrorKind::Misconfigured, "has moved", "use its new name in the store's address")
        }
        422 => (StoreErrorKind::Broken, "does not take what was asked", "please report this"),
        500..=599 => (StoreErrorKind::Unavailable, "has a problem", "try again; look at githubstatus.com"),
        _ => (
            StoreErrorKind::Broken,
            "gave an answer that nobody expected",
            "is there something else at this address?",
        ),
    };
    let said = Said(format!("{status}: {}", message.lines().next().unwrap_or_default()));
    Error::store(trouble, format!("the GitHub repository {repository} {what}"), hint).because(said)
}

/// Returns the error for a request without a response.
pub(super) fn unreachable(repository: &str, error: reqwest::Error) -> Error {
    let what = if error.is_timeout() { "did not answer in time" } else { "cannot be reached" };
    let message = format!("the GitHub repository {repository} {what}");
    let hint = "try again; look at the network, the address of the API, and githubstatus.com";
    Error::store(StoreErrorKind::Unavailable, message, hint).because(error.without_url())
}

/// Returns the error for a response that does not match the description of the API.
pub(super) fn unreadable(repository: &str, error: serde_json::Error) -> Error {
    let message = format!("the GitHub repository {repository} gave an answer that cannot be read");
    Error::store(StoreErrorKind::Unavailable, message, "try again; is there something else at this address?")
        .because(error)
}

/// Returns the error for a lock whose issue does not exist any more.
pub(super) fn no_issue(repository: &str, number: u64) -> Error {
    let message = format!("issue #{number} of the GitHub repository {repository} is not there");
    Error::store(StoreErrorKind::Misconfigured, message, "was it deleted or moved? Look at its number")
}

/// Returns the error for a lock whose issue a person has closed: such a lock must not be used.
pub(super) fn closed(repository: &str, number: u64) -> Error {
    let message = format!("issue #{number} of the GitHub repository {repository} is closed");
    Error::store(StoreErrorKind::Misconfigured, message, "open it again to use its lock")
}
