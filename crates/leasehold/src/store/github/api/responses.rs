//! Responses of the GitHub API, reduced to the fields that leasehold reads.

use serde::{Deserialize, Deserializer};

use crate::model::Timestamp;

/// Issue.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::store::github) struct Issue {
    pub(in crate::store::github) number: u64,
    pub(in crate::store::github) state: String,
    pub(in crate::store::github) title: String,
    #[serde(default)]
    pub(in crate::store::github) body: Option<String>,
    #[serde(default)]
    pub(in crate::store::github) state_reason: Option<String>,
    #[serde(default)]
    pub(in crate::store::github) html_url: String,
    /// Author of the issue; `None` if the account was deleted.
    #[serde(default)]
    pub(in crate::store::github) user: Option<User>,
    #[serde(default)]
    pub(in crate::store::github) author_association: Option<String>,
    #[serde(default)]
    labels: Vec<Label>,
    #[serde(default)]
    pub(super) assignees: Option<Vec<User>>,
    pub(in crate::store::github) comments: u64,
    /// Present if the issue is a pull request: GitHub lists pull requests among issues.
    #[serde(default)]
    pub(in crate::store::github) pull_request: Option<serde_json::Value>,
    #[serde(deserialize_with = "time")]
    pub(in crate::store::github) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(in crate::store::github) updated_at: Timestamp,
    #[serde(default, deserialize_with = "maybe_time")]
    pub(in crate::store::github) closed_at: Option<Timestamp>,
}

/// Label, in either of the two formats that GitHub returns.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Label {
    Name(String),
    Whole {
        #[serde(default)]
        name: String,
    },
}

impl Issue {
    /// Returns the names of the issue's labels.
    pub(in crate::store::github) fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(|label| match label {
            Label::Name(name) | Label::Whole { name } => name.as_str(),
        })
    }

    /// Whether the issue has this label. Ignores case, as GitHub does.
    pub(in crate::store::github) fn has_label(&self, label: &str) -> bool {
        self.labels().any(|name| name.to_lowercase() == label.to_lowercase())
    }

    pub(in crate::store::github) fn is_closed(&self) -> bool {
        self.state == "closed"
    }

    pub(in crate::store::github) fn assigned(&self) -> impl Iterator<Item = &User> {
        self.assignees.iter().flatten()
    }

    pub(in crate::store::github) fn is_assigned_to(&self, login: &str) -> bool {
        self.assigned().any(|user| user.login.eq_ignore_ascii_case(login))
    }
}

/// GitHub account.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::store::github) struct User {
    pub(in crate::store::github) login: String,
    #[serde(rename = "type", default)]
    kind: String,
}

impl User {
    /// Whether the account is an App, not a person.
    pub(in crate::store::github) fn is_bot(&self) -> bool {
        self.kind == "Bot"
    }
}

/// Comment on an issue.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::store::github) struct Comment {
    pub(in crate::store::github) id: u64,
    #[serde(default)]
    pub(in crate::store::github) body: Option<String>,
    /// Author of the comment; `None` if the account was deleted.
    pub(in crate::store::github) user: Option<User>,
    #[serde(default)]
    pub(in crate::store::github) author_association: Option<String>,
    /// URL of the comment's issue: `…/issues/123`.
    #[serde(default)]
    issue_url: String,
    #[serde(deserialize_with = "time")]
    pub(in crate::store::github) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(in crate::store::github) updated_at: Timestamp,
}

impl Comment {
    /// Returns the number of the comment's issue.
    pub(in crate::store::github) fn issue(&self) -> Option<u64> {
        self.issue_url.rsplit('/').next()?.parse().ok()
    }
}

/// Event in the history of an issue.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::store::github) struct IssueEvent {
    #[serde(default)]
    pub(in crate::store::github) event: String,
    /// Account that was assigned or unassigned.
    #[serde(default)]
    pub(in crate::store::github) assignee: Option<User>,
    #[serde(default)]
    label: Option<Label>,
    #[serde(deserialize_with = "time")]
    pub(in crate::store::github) created_at: Timestamp,
}

impl IssueEvent {
    /// Returns the name of the label that the event is about.
    pub(in crate::store::github) fn label(&self) -> Option<&str> {
        self.label.as_ref().map(|label| match label {
            Label::Name(name) | Label::Whole { name } => name.as_str(),
        })
    }
}

/// Repository.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::store::github) struct Repository {
    pub(in crate::store::github) has_issues: bool,
    #[serde(default)]
    pub(in crate::store::github) archived: bool,
    #[serde(default)]
    pub(in crate::store::github) permissions: Option<Permissions>,
}

/// Permissions of the token on the repository.
#[derive(Debug, Clone, Default, Deserialize)]
pub(in crate::store::github) struct Permissions {
    #[serde(default)]
    pub(in crate::store::github) push: bool,
}

/// Installation access token of a GitHub App.
#[derive(Deserialize)]
pub(super) struct InstallationToken {
    pub(super) token: String,
}

/// GitHub App as which this client authenticates.
#[derive(Deserialize)]
pub(super) struct AppInfo {
    pub(super) slug: String,
}

/// Error response.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ErrorBody {
    #[serde(default)]
    pub(super) message: String,
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
    Ok(Timestamp::from_micros(u64::try_from(time.as_microsecond()).unwrap_or(0)))
}

fn maybe_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    #[derive(Deserialize)]
    struct Time(#[serde(deserialize_with = "time")] Timestamp);
    Ok(Option::<Time>::deserialize(deserializer)?.map(|Time(time)| time))
}
