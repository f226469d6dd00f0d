//! What GitHub says, in our words.

use crate::error::{Error, Trouble};

/// What GitHub said, as far as people may see it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(String);

pub(super) const NO_TOKEN: &str =
    "set GITHUB_TOKEN or GH_TOKEN to a token that may read and write the repository's issues";

pub(super) const NO_CONTENTS: &str = "arbiter=ref needs a token that may read and write the repository's contents, of a login with push access";

/// An answer that is no good: what it means for the repository, and what to do.
pub(super) fn refused(repository: &str, status: u16, message: &str) -> Error {
    let (trouble, what, hint) = match status {
        401 => (Trouble::NotPermitted, "does not know this token", NO_TOKEN),
        403 if message.to_lowercase().contains("locked") => (
            Trouble::NotPermitted,
            "has locked the conversation of this issue",
            "unlock it, or use a token that may write to locked conversations",
        ),
        403 => (
            Trouble::NotPermitted,
            "does not let this token do that",
            "let it have the permissions in docs/engines/github.md: issues, read and write; contents too for arbiter=ref",
        ),
        404 => (
            Trouble::Misconfigured,
            "is not there, or this token may not see it",
            "look at the name of the repository and at what the token may see",
        ),
        410 => {
            (Trouble::Misconfigured, "has no issues", "switch issues on in the settings of the repository")
        }
        301 | 302 | 307 | 308 => {
            (Trouble::Misconfigured, "has moved", "use its new name in the store's address")
        }
        422 => (Trouble::Broken, "does not take what was asked", "please report this"),
        500..=599 => (Trouble::Unavailable, "has a problem", "try again; look at githubstatus.com"),
        _ => (
            Trouble::Broken,
            "gave an answer that nobody expected",
            "is there something else at this address?",
        ),
    };
    let said = Said(format!("{status}: {}", message.lines().next().unwrap_or_default()));
    Error::store(trouble, format!("the GitHub repository {repository} {what}"), hint).because(said)
}

/// No answer at all.
pub(super) fn unreachable(repository: &str, error: reqwest::Error) -> Error {
    let what = if error.is_timeout() { "did not answer in time" } else { "cannot be reached" };
    let message = format!("the GitHub repository {repository} {what}");
    let hint = "try again; look at the network, the address of the API, and githubstatus.com";
    Error::store(Trouble::Unavailable, message, hint).because(error.without_url())
}

/// An answer that is not what the description of the API promises.
pub(super) fn unreadable(repository: &str, error: serde_json::Error) -> Error {
    let message = format!("the GitHub repository {repository} gave an answer that cannot be read");
    Error::store(Trouble::Unavailable, message, "try again; is there something else at this address?")
        .because(error)
}

/// The issue of a lock that is not there any more.
pub(super) fn no_issue(repository: &str, number: u64) -> Error {
    let message = format!("issue #{number} of the GitHub repository {repository} is not there");
    Error::store(Trouble::Misconfigured, message, "was it deleted or moved? Look at its number")
}

/// The issue of a lock that a person has closed: that is respected.
pub(super) fn closed(repository: &str, number: u64) -> Error {
    let message = format!("issue #{number} of the GitHub repository {repository} is closed");
    Error::store(Trouble::Misconfigured, message, "open it again to use its lock")
}
