//! Identity of a caller: its role, and the scopes of its token. A token reaches everything, or only the
//! locks, queues, workflows and Terraform states that its scopes name.
//!
//! A token with scopes is rejected for everything that no scope names. Requests whose path names
//! one resource are checked before their handler; for requests that name the resource in their body
//! or by an id, the handler checks.

use std::fmt;
use std::str::FromStr;

use axum::extract::{MatchedPath, RawPathParams};
use leasehold::model::{LockName, QueueName, ValidationError, WorkflowName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::{ApiResult, Problem};

/// Prefix of the lock name of a Terraform state; the name of the state follows.
pub(crate) const STATE_LOCKS: &str = "tf/";

/// Scope of a token: `locks:deploy/*`, `queues:mail`, `workflows:*`, `terraform:prod`, `metrics`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scope {
    kind: Kind,
    name: String,
    /// Whether the scope covers all names with this prefix.
    is_prefix: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Locks,
    Queues,
    Workflows,
    Terraform,
    Metrics,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Locks, Self::Queues, Self::Workflows, Self::Terraform, Self::Metrics];

    /// Returns the word in the text of a scope, and the noun phrase for one resource, for messages.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Locks => ("locks", "the lock"),
            Self::Queues => ("queues", "the queue"),
            Self::Workflows => ("workflows", "the workflow"),
            Self::Terraform => ("terraform", "the Terraform state"),
            Self::Metrics => ("metrics", "the metrics"),
        }
    }
}

impl Scope {
    fn reaches(&self, kind: Kind, name: &str) -> bool {
        let matches = if self.is_prefix { name.starts_with(&self.name) } else { name == self.name };
        self.kind == kind && (matches || kind == Kind::Metrics)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = (self.kind.words().0, &self.name);
        match (self.kind, self.is_prefix) {
            (Kind::Metrics, _) => f.write_str(kind),
            (_, true) => write!(f, "{kind}:{name}*"),
            (_, false) => write!(f, "{kind}:{name}"),
        }
    }
}

impl FromStr for Scope {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let invalid = || {
            ValidationError::other(format!(
                "invalid scope '{}': must be locks:NAME, queues:NAME, workflows:NAME, terraform:NAME or metrics; a NAME \
                 that ends with * is a prefix",
                text.escape_debug()
            ))
        };
        if text == Kind::Metrics.words().0 {
            return Ok(Self { kind: Kind::Metrics, name: String::new(), is_prefix: true });
        }
        let (kind, name) = text.split_once(':').ok_or_else(invalid)?;
        let kind = Kind::ALL.into_iter().find(|known| known.words().0 == kind && *known != Kind::Metrics);
        let kind = kind.ok_or_else(invalid)?;
        let (name, is_prefix) = name.strip_suffix('*').map_or((name, false), |prefix| (prefix, true));
        if name.contains('*') || (name.is_empty() && !is_prefix) {
            return Err(invalid());
        }
        // A name that no lock can have would match nothing, so it is an error.
        if !name.is_empty() {
            LockName::new(name)?;
        }
        Ok(Self { kind, name: name.to_owned(), is_prefix })
    }
}

impl TryFrom<String> for Scope {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> String {
        scope.to_string()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Name of the token.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Whether the request carried a token; `false` on an open server.
    pub(crate) has_token: bool,
    /// Scopes of the token; empty means no restriction.
    pub(crate) scopes: Vec<Scope>,
}

impl Identity {
    pub(crate) fn is_scoped(&self) -> bool {
        !self.scopes.is_empty()
    }

    pub(crate) fn must_reach_lock(&self, name: &LockName) -> ApiResult<()> {
        let text = name.as_str();
        match (text.strip_prefix(WorkflowName::PREFIX), text.strip_prefix(STATE_LOCKS)) {
            (Some(workflow), _) => self.must_reach(Kind::Workflows, workflow),
            (_, Some(state)) => self.must_reach(Kind::Terraform, state),
            _ => self.must_reach(Kind::Locks, text),
        }
    }

    pub(crate) fn must_reach_queue(&self, name: &QueueName) -> ApiResult<()> {
        match name.as_str().strip_prefix(WorkflowName::PREFIX) {
            Some(workflow) => self.must_reach(Kind::Workflows, workflow),
            None => self.must_reach(Kind::Queues, name.as_str()),
        }
    }

    /// Checks a request about one queue or, without a name, about all queues.
    pub(crate) fn must_reach_queues(&self, name: Option<&QueueName>) -> ApiResult<()> {
        name.map_or_else(|| self.must_reach_all(), |name| self.must_reach_queue(name))
    }

    /// Checks a request about everything: only tokens without scopes pass.
    pub(crate) fn must_reach_all(&self) -> ApiResult<()> {
        if self.is_scoped() { Err(self.out_of_scope("this request")) } else { Ok(()) }
    }

    fn must_reach(&self, kind: Kind, name: &str) -> ApiResult<()> {
        if !self.is_scoped() || self.scopes.iter().any(|scope| scope.reaches(kind, name)) {
            return Ok(());
        }
        Err(self.out_of_scope(&format!("{} '{name}'", kind.words().1)))
    }

    fn out_of_scope(&self, subject: &str) -> Problem {
        let scopes: Vec<String> = self.scopes.iter().map(ToString::to_string).collect();
        let detail =
            format!("{subject} is not in the scopes of the token '{}': {}", self.name, scopes.join(", "));
        Problem::new("FORBIDDEN", detail).hint(
            "use a token with such a scope; create one on the server's machine with: \
             leasehold token new --name NAME --role ROLE --scope SCOPE",
        )
    }

    /// Checks the resource that the path of a request names. If the path does not name one, the
    /// handler checks.
    pub(super) fn must_reach_path(
        &self,
        path: Option<&MatchedPath>,
        params: &RawPathParams,
    ) -> ApiResult<()> {
        if !self.is_scoped() {
            return Ok(());
        }
        let param = |name| params.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value);
        let segments: Vec<&str> = path.map_or("", MatchedPath::as_str).split('/').skip(1).collect();
        match segments[..] {
            ["metrics"] | ["api", "v1", "stats"] => self.must_reach(Kind::Metrics, ""),
            ["api", "v1", "locks" | "fence", "{name}", ..] => {
                self.must_reach_lock(&LockName::new(param("name"))?)
            }
            ["api", "v1", "queues", "{queue}", ..] => self.must_reach_queue(&QueueName::new(param("queue"))?),
            ["api", "v1", "workflows", "{name}", ..] => self.must_reach(Kind::Workflows, param("name")),
            ["tf", "{name}", ..] => self.must_reach(Kind::Terraform, param("name")),
            // Named by an id, a query or a body: their handlers check.
            ["api", "v1", "tasks", "{id}" | "heartbeat" | "settle", ..]
            | ["api", "v1", "tasks" | "executions" | "locks" | "events"]
            | ["api", "v1", "executions" | "workers", "{id}", ..]
            | ["api", "v1", "store", ..] => Ok(()),
            _ => self.must_reach_all(),
        }
    }

    /// Checks a listing of locks whose names begin with this prefix.
    pub(crate) fn must_reach_locks(&self, prefix: Option<&str>) -> ApiResult<()> {
        let prefix = prefix.unwrap_or_default();
        let covers =
            |scope: &Scope| scope.kind == Kind::Locks && scope.is_prefix && prefix.starts_with(&scope.name);
        let is_reserved = prefix.starts_with(WorkflowName::PREFIX) || prefix.starts_with(STATE_LOCKS);
        let includes_reserved =
            [WorkflowName::PREFIX, STATE_LOCKS].iter().any(|reserved| reserved.starts_with(prefix));
        if !self.is_scoped() || (self.scopes.iter().any(covers) && !is_reserved && !includes_reserved) {
            return Ok(());
        }
        Err(self.out_of_scope(&format!("the list of all locks that begin with '{prefix}'")))
    }
}

/// Role of a caller. Each role includes the rights of the roles before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May query everything and change nothing.
    Reader,
    /// May acquire locks, lease tasks and start workflows.
    Worker,
    /// May pause, cancel and retry, and request the release of locks.
    Operator,
    /// May release locks of others by force, and delete tasks.
    Admin,
}

impl Role {
    const ALL: [Self; 4] = [Self::Reader, Self::Worker, Self::Operator, Self::Admin];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Worker => "worker",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            ValidationError::other(format!("invalid role '{text}': must be one of {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(scopes: &[&str]) -> Identity {
        let scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
        Identity { name: "ci".to_owned(), role: Role::Admin, has_token: true, scopes }
    }

    #[test]
    fn a_scope_survives_the_round_trip_through_its_text() {
        for text in ["locks:deploy/*", "queues:mail", "workflows:*", "terraform:prod", "metrics"] {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        for text in ["", "locks", "locks:", "lock:a", "locks:a*b", "metrics:*", "locks:\u{1b}"] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_scope_matches_one_name_or_a_prefix() {
        let (lock, queue) = (|name| LockName::new(name).unwrap(), |name| QueueName::new(name).unwrap());
        let ci = identity(&["locks:deploy/*", "queues:mail", "workflows:build"]);
        assert!(ci.must_reach_lock(&lock("deploy/prod")).is_ok());
        assert!(ci.must_reach_lock(&lock("deploy")).is_err());
        assert!(ci.must_reach_queue(&queue("mail")).is_ok());
        assert!(ci.must_reach_queue(&queue("mails")).is_err());
        // The queue and the lock of a workflow belong to the workflow, the lock of a state to the
        // state.
        assert!(ci.must_reach_queue(&queue("workflow/build")).is_ok());
        assert!(ci.must_reach_lock(&lock("workflow/build")).is_ok());
        assert!(ci.must_reach_lock(&lock("workflow/other")).is_err());
        assert!(identity(&["locks:*"]).must_reach_lock(&lock("tf/prod")).is_err());
        assert!(identity(&["terraform:prod"]).must_reach_lock(&lock("tf/prod")).is_ok());
        assert!(identity(&["queues:*"]).must_reach_queue(&queue("workflow/build")).is_err());
        assert!(ci.must_reach_all().is_err() && identity(&[]).must_reach_all().is_ok());
    }

    #[test]
    fn a_listing_of_locks_must_be_within_a_scope() {
        let ci = identity(&["locks:deploy/*"]);
        assert!(ci.must_reach_locks(Some("deploy/p")).is_ok());
        for prefix in [None, Some(""), Some("d"), Some("other")] {
            assert!(ci.must_reach_locks(prefix).is_err(), "{prefix:?}");
        }
        let all = identity(&["locks:*"]);
        assert!(all.must_reach_locks(Some("a")).is_ok());
        for prefix in ["", "t", "tf/", "workflow/x"] {
            assert!(all.must_reach_locks(Some(prefix)).is_err(), "{prefix}");
        }
    }
}
