//! Responses of the GitHub API, reduced to the fields that leasehold reads.

use serde::{Deserialize, Deserializer};

use crate::model::Timestamp;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Issue {
    pub(crate) number: u64,
    pub(crate) state: String,
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) body: Option<String>,
    #[serde(default)]
    state_reason: Option<String>,
    #[serde(default)]
    pub(crate) html_url: String,
    /// Author of the issue; `None` if the account was deleted.
    #[serde(default)]
    pub(crate) user: Option<User>,
    #[serde(default)]
    pub(crate) author_association: Option<String>,
    #[serde(default)]
    labels: Vec<Label>,
    #[serde(default)]
    pub(super) assignees: Option<Vec<User>>,
    pub(crate) comments: u64,
    /// Present if the issue is a pull request: GitHub lists pull requests among issues.
    #[serde(default)]
    pub(crate) pull_request: Option<serde_json::Value>,
    #[serde(deserialize_with = "time")]
    pub(crate) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(crate) updated_at: Timestamp,
    #[serde(default, deserialize_with = "maybe_time")]
    pub(crate) closed_at: Option<Timestamp>,
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
    pub(crate) fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(|label| match label {
            Label::Name(name) | Label::Whole { name } => name.as_str(),
        })
    }

    /// Whether the issue has this label. Ignores case, as GitHub does.
    pub(crate) fn has_label(&self, label: &str) -> bool {
        self.labels().any(|name| name.to_lowercase() == label.to_lowercase())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == "closed"
    }

    /// Whether the issue was closed as completed; the reason may also be missing.
    pub(crate) fn is_completed(&self) -> bool {
        self.state_reason.as_deref().is_none_or(|reason| reason == "completed")
    }

    pub(crate) fn assigned(&self) -> impl Iterator<Item = &User> {
        self.assignees.iter().flatten()
    }

    pub(crate) fn is_assigned_to(&self, login: &str) -> bool {
        self.assigned().any(|user| user.login.eq_ignore_ascii_case(login))
    }
}

/// GitHub account.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct User {
    pub(crate) login: String,
    #[serde(rename = "type", default)]
    kind: String,
}

impl User {
    /// Whether the account is an App, not a person.
    pub(crate) fn is_bot(&self) -> bool {
        self.kind == "Bot"
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Comment {
    pub(crate) id: u64,
    #[serde(default)]
    pub(crate) body: Option<String>,
    /// Author of the comment; `None` if the account was deleted.
    pub(crate) user: Option<User>,
    #[serde(default)]
    pub(crate) author_association: Option<String>,
    /// URL of the comment's issue: `…/issues/123`.
    #[serde(default)]
    issue_url: String,
    #[serde(deserialize_with = "time")]
    pub(crate) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(crate) updated_at: Timestamp,
}

impl Comment {
    /// Returns the number of the comment's issue.
    pub(crate) fn issue(&self) -> Option<u64> {
        self.issue_url.rsplit('/').next()?.parse().ok()
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct IssueEvent {
    #[serde(default)]
    pub(crate) event: String,
    /// Account that was assigned or unassigned.
    #[serde(default)]
    pub(crate) assignee: Option<User>,
    #[serde(default)]
    label: Option<Label>,
    #[serde(deserialize_with = "time")]
    pub(crate) created_at: Timestamp,
}

impl IssueEvent {
    /// Returns the name of the label that the event is about.
    pub(crate) fn label(&self) -> Option<&str> {
        self.label.as_ref().map(|label| match label {
            Label::Name(name) | Label::Whole { name } => name.as_str(),
        })
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Repository {
    pub(crate) has_issues: bool,
    #[serde(default)]
    pub(crate) archived: bool,
    #[serde(default)]
    pub(crate) permissions: Option<Permissions>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Permissions {
    #[serde(default)]
    pub(crate) push: bool,
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
