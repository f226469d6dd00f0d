//! What comes back from GitHub: only what is read.

use serde::{Deserialize, Deserializer};

use crate::model::Timestamp;

/// An issue.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Issue {
    pub(super) number: u64,
    pub(super) state: String,
    pub(super) title: String,
    #[serde(default)]
    pub(super) body: Option<String>,
    #[serde(default)]
    pub(super) assignees: Option<Vec<User>>,
    pub(super) comments: u64,
    /// There if it is a pull request, which is listed among issues.
    #[serde(default)]
    pub(super) pull_request: Option<serde_json::Value>,
    #[serde(deserialize_with = "time")]
    pub(super) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(super) updated_at: Timestamp,
}

impl Issue {
    pub(super) fn is_closed(&self) -> bool {
        self.state == "closed"
    }

    pub(super) fn assigned(&self) -> impl Iterator<Item = &User> {
        self.assignees.iter().flatten()
    }

    pub(super) fn is_assigned_to(&self, login: &str) -> bool {
        self.assigned().any(|user| user.login.eq_ignore_ascii_case(login))
    }
}

/// Somebody.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct User {
    pub(super) login: String,
    #[serde(rename = "type", default)]
    kind: String,
}

impl User {
    /// An App, not a person.
    pub(super) fn is_bot(&self) -> bool {
        self.kind == "Bot"
    }
}

/// A comment.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Comment {
    pub(super) id: u64,
    #[serde(default)]
    pub(super) body: Option<String>,
    /// Nobody if the account is gone.
    pub(super) user: Option<User>,
    #[serde(default)]
    pub(super) author_association: Option<String>,
    #[serde(deserialize_with = "time")]
    pub(super) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(super) updated_at: Timestamp,
}

/// Something that happened to an issue.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct IssueEvent {
    pub(super) event: String,
    /// Who was assigned, or is no longer.
    #[serde(default)]
    pub(super) assignee: Option<User>,
    #[serde(deserialize_with = "time")]
    pub(super) created_at: Timestamp,
}

/// A repository.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Repository {
    pub(super) has_issues: bool,
    #[serde(default)]
    pub(super) archived: bool,
    #[serde(default)]
    pub(super) permissions: Option<Permissions>,
}

/// What the token may do there.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Permissions {
    #[serde(default)]
    pub(super) push: bool,
}

/// A token that an App has drawn.
#[derive(Deserialize)]
pub(super) struct Drawn {
    pub(super) token: String,
}

/// Why not.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub(super) message: String,
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
    Ok(Timestamp::from_micros(u64::try_from(time.as_microsecond()).unwrap_or(0)))
}
