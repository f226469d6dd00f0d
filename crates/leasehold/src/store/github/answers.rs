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
    pub(super) state_reason: Option<String>,
    #[serde(default)]
    pub(super) html_url: String,
    /// Nobody if the account is gone.
    #[serde(default)]
    pub(super) user: Option<User>,
    #[serde(default)]
    pub(super) author_association: Option<String>,
    #[serde(default)]
    labels: Vec<Label>,
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
    #[serde(default, deserialize_with = "maybe_time")]
    pub(super) closed_at: Option<Timestamp>,
}

/// A label, in either of the ways that GitHub gives it.
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
    /// The names of its labels.
    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(|label| match label {
            Label::Name(name) | Label::Whole { name } => name.as_str(),
        })
    }

    /// As GitHub compares them.
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
    /// The address of its issue: `…/issues/123`.
    #[serde(default)]
    issue_url: String,
    #[serde(deserialize_with = "time")]
    pub(super) created_at: Timestamp,
    #[serde(deserialize_with = "time")]
    pub(super) updated_at: Timestamp,
}

impl Comment {
    /// The number of its issue.
    pub(super) fn issue(&self) -> Option<u64> {
        self.issue_url.rsplit('/').next()?.parse().ok()
    }
}

/// Something that happened to an issue.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct IssueEvent {
    #[serde(default)]
    pub(super) event: String,
    /// Who was assigned, or is no longer.
    #[serde(default)]
    pub(super) assignee: Option<User>,
    #[serde(default)]
    label: Option<Label>,
    #[serde(deserialize_with = "time")]
    pub(super) created_at: Timestamp,
}

impl IssueEvent {
    /// Which label it is about.
    pub(super) fn label(&self) -> Option<&str> {
        self.label.as_ref().map(|label| match label {
            Label::Name(name) | Label::Whole { name } => name.as_str(),
        })
    }
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

/// The App that this client is.
#[derive(Deserialize)]
pub(super) struct AppAnswer {
    pub(super) slug: String,
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

fn maybe_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    #[derive(Deserialize)]
    struct Time(#[serde(deserialize_with = "time")] Timestamp);
    Ok(Option::<Time>::deserialize(deserializer)?.map(|Time(time)| time))
}
