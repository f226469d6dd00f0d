//! Responses of the GitHub API, reduced to the fields that leasehold reads.

use serde::{Deserialize, Deserializer};

use crate::model::Timestamp;

/// Issue.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Issue {
    pub(super) number: u64,
    pub(super) state: String,
    pub(super) title: String,
    #[serde(default)]
    pub(super) body: Option<String>,
    #[serde(default)]
    pub(super) state_reason: Option<String>,
    #[serde(default)]
    pub(super) html_url: String,
    /// Author of the issue; `None` if the account was deleted.
    #[serde(default)]
    pub(super) user: Option<User>,
    #[serde(default)]
    pub(super) author_association: Option<String>,
    #[serde(default)]
    labels: Vec<Label>,
    #[serde(default)]
    pub(super) assignees: Option<Vec<User>>,
    pub(super) comments: u64,
    /// Present if the issue is a pull request: GitHub lists pull requests among issues.
    #[serde(default)]
    pub(super) pull_request: Option<serde_json::Value>,
    #[serde(deserialize_with = "time")]
    pub(super) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(super) updated_at: Timestamp,
    #[serde(default, deserialize_with = "maybe_time")]
    pub(super) closed_at: Option<Timestamp>,
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
    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(|label| match label {
            Label::Name(name) | Label::Whole { name } => name.as_str(),
        })
    }

    /// Whether the issue has this label. Ignores case, as GitHub does.
    pub(super) fn has_label(&self, label: &str) -> bool {
        self.labels().any(|name| name.to_lowercase() == label.to_lowercase())
    }

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

/// GitHub account.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct User {
    pub(super) login: String,
    #[serde(rename = "type", default)]
    kind: String,
}

impl User {
    /// Whether the account is an App, not a person.
    pub(super) fn is_bot(&self) -> bool {
        self.kind == "Bot"
    }
}

/// Comment on an issue.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Comment {
    pub(super) id: u64,
    #[serde(default)]
    pub(super) body: Option<String>,
    /// Author of the comment; `None` if the account was deleted.
    pub(super) user: Option<User>,
    #[serde(default)]
    pub(super) author_association: Option<String>,
    /// URL of the comment's issue: `…/issues/123`.
    #[serde(default)]
    issue_url: String,
    #[serde(deserialize_with = "time")]
    pub(super) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(super) updated_at: Timestamp,
}

impl Comment {
    /// Returns the number of the comment's issue.
    pub(super) fn issue(&self) -> Option<u64> {
        self.issue_url.rsplit('/').next()?.parse().ok()
    }
}

/// Event in the history of an issue.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct IssueEvent {
    #[serde(default)]
    pub(super) event: String,
    /// Account that was assigned or unassigned.
    #[serde(default)]
    pub(super) assignee: Option<User>,
    #[serde(default)]
    label: Option<Label>,
    #[serde(deserialize_with = "time")]
    pub(super) created_at: Timestamp,
}

impl IssueEvent {
    /// Returns the name of the label that the event is about.
    pub(super) fn label(&self) -> Option<&str> {
        self.label.as_ref().map(|label| match label {
            Label::Name(name) | Label::Whole { name } => name.as_str(),
        })
    }
}

/// Repository.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Repository {
    pub(super) has_issues: bool,
    #[serde(default)]
    pub(super) archived: bool,
    #[serde(default)]
    pub(super) permissions: Option<Permissions>,
}

/// Permissions of the token on the repository.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Permissions {
    #[serde(default)]
    pub(super) push: bool,
}

/// Installation access token of a GitHub App.
#[derive(Deserialize)]
pub(super) struct Drawn {
    pub(super) token: String,
}

/// GitHub App as which this client authenticates.
#[derive(Deserialize)]
pub(super) struct AppAnswer {
    pub(super) slug: String,
}

/// Error response.
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

fn maybe_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    #[derive(Deserialize)]
    struct Time(#[serde(deserialize_with = "time")] Timestamp);
    Ok(Option::<Time>::deserialize(deserializer)?.map(|Time(time)| time))
}
