//! Settings of the workflows that the server starts, and of the webhook triggers that start them.

use std::path::PathBuf;
use std::time::Duration;

use leasehold::OnLocked;
use leasehold::model::{Reuse, Ttl, WorkflowName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::webhooks::{Filter, Pointer, Scheme, Secret};

/// Default TTL of a lease on a workflow; heartbeats extend the lease.
pub(crate) const DEFAULT_TTL: Ttl = Ttl::from_secs(30);
/// Default maximum number of executions that wait for a workflow.
pub(crate) const DEFAULT_QUEUE_LIMIT: u32 = 100;
/// Default maximum difference between a signed timestamp and the current time.
pub(crate) const TOLERANCE: Duration = Duration::from_mins(5);
/// Default time for which a signed body is remembered if its sender does not sign an id.
pub(crate) const REPLAY_MEMORY: Ttl = Ttl::from_secs(24 * 3600);

/// Workflow that callers can start through this server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Workflow {
    /// Name of the workflow.
    pub name: WorkflowName,
    /// Description for end users.
    pub description: Option<String>,
    /// Default action if another execution holds the lock, for requests that do not specify one.
    pub on_locked: OnLocked,
    /// Maximum number of waiting executions if executions are queued.
    pub queue_limit: u32,
    /// When the key of an earlier execution may be reused.
    pub reuse: Reuse,
    /// TTL of a lease; heartbeats extend the lease.
    pub ttl: Ttl,
    /// Maximum runtime of an execution.
    pub max_runtime: Option<Ttl>,
    /// Runner of the executions.
    pub runner: Runner,
}

impl Workflow {
    /// Creates a workflow with default settings.
    pub fn new(name: WorkflowName, runner: Runner) -> Self {
        Self {
            name,
            description: None,
            on_locked: OnLocked::default(),
            queue_limit: DEFAULT_QUEUE_LIMIT,
            reuse: Reuse::default(),
            ttl: DEFAULT_TTL,
            max_runtime: None,
            runner,
        }
    }
}

/// Runner of the executions of a workflow.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Runner {
    /// `leasehold serve` runs them with this command.
    Command(CommandSettings),
    /// Any caller that leases them, over HTTP or as a worker of the library.
    External,
}

/// Command of a workflow. The command is fixed: no part of a request becomes part of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CommandSettings {
    /// Program and its arguments.
    pub argv: Vec<String>,
    /// Environment variables that the command inherits from the server, in addition to a few that
    /// every program needs.
    pub environment: Vec<String>,
    /// Working directory.
    pub directory: PathBuf,
}

impl CommandSettings {
    /// Creates a command that inherits no further environment variables.
    pub fn new(argv: Vec<String>, directory: PathBuf) -> Self {
        Self { argv, environment: Vec::new(), directory }
    }
}

/// Webhook that starts a workflow.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Trigger {
    /// Id of the trigger, as in its URL.
    pub id: String,
    /// Workflow that the trigger starts.
    pub workflow: WorkflowName,
    /// Signature scheme of the sender.
    pub scheme: Scheme,
    /// Secrets of the sender; a signature with any of them is valid.
    pub secrets: Vec<Secret>,
    /// Filter for the events that start the workflow.
    pub filter: Filter,
    /// Pointer to the key of an event in the body.
    pub key: Option<Pointer>,
    /// Action if another execution holds the lock.
    pub on_locked: OnLocked,
    /// Maximum difference between a signed timestamp and the current time.
    pub tolerance: Duration,
    /// Time for which a signed body is remembered if its sender does not sign an id; a replayed
    /// body starts nothing. `None` disables the check.
    pub replay_memory: Option<Ttl>,
}

impl Trigger {
    /// Creates a trigger that starts the workflow for every event with a valid signature.
    pub fn new(id: String, workflow: WorkflowName, scheme: Scheme, secrets: Vec<Secret>) -> Self {
        Self {
            id,
            workflow,
            scheme,
            secrets,
            filter: Filter::default(),
            key: None,
            on_locked: OnLocked::default(),
            tolerance: TOLERANCE,
            replay_memory: Some(REPLAY_MEMORY),
        }
    }
}

/// Action if another execution holds the lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnLockedAction {
    /// Rejects the start with 409.
    #[default]
    Reject,
    /// Responds with 202 and runs the execution after the earlier ones.
    Queue,
    /// Responds with 200 and starts nothing.
    Skip,
}

impl From<OnLocked> for OnLockedAction {
    fn from(on_locked: OnLocked) -> Self {
        match on_locked {
            OnLocked::Queue(_) => Self::Queue,
            OnLocked::Skip => Self::Skip,
            _ => Self::Reject,
        }
    }
}

impl OnLockedAction {
    pub(crate) fn resolve(self, queue_limit: u32) -> OnLocked {
        match self {
            Self::Reject => OnLocked::Reject,
            Self::Queue => OnLocked::Queue(queue_limit),
            Self::Skip => OnLocked::Skip,
        }
    }
}
