//! The settings of workflows and triggers.

use std::path::PathBuf;
use std::time::Duration;

use leasehold::OnLocked;
use leasehold::model::{Reuse, Ttl, WorkflowName};

use crate::webhooks::{Filter, Pointer, Scheme, Secret};

/// A workflow that can be started here.
#[derive(Debug, Clone)]
pub struct Workflow {
    /// Its name.
    pub name: WorkflowName,
    /// What it is for, in words for people.
    pub description: Option<String>,
    /// What to do if another execution is in the way, if the request does not say.
    pub on_locked: OnLocked,
    /// How many may wait, if they do.
    pub places: u32,
    /// When the key of an earlier execution may be used anew.
    pub reuse: Reuse,
    /// How long a lease lasts without a sign of life.
    pub ttl: Ttl,
    /// How long an execution may run.
    pub max_runtime: Option<Ttl>,
    /// Who runs its executions.
    pub runner: Runner,
}

/// Who runs the executions of a workflow.
#[derive(Debug, Clone)]
pub enum Runner {
    /// `leasehold serve`, with this command.
    Command(CommandSettings),
    /// Whoever asks for them, by HTTP or as a worker of the library.
    External,
}

/// A command, fixed once and for all: nothing of a request gets into it.
#[derive(Debug, Clone)]
pub struct CommandSettings {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The variables that it gets of the server's environment, besides a few that every program needs.
    pub environment: Vec<String>,
    /// The folder that it runs in.
    pub directory: PathBuf,
}

/// A webhook that starts a workflow.
#[derive(Debug, Clone)]
pub struct Trigger {
    /// What it is called in its address.
    pub id: String,
    /// What it starts.
    pub workflow: WorkflowName,
    /// How its sender signs.
    pub scheme: Scheme,
    /// What its sender signs with: each of them is good.
    pub secrets: Vec<Secret>,
    /// Which events start it.
    pub filter: Filter,
    /// Where in the body the key of an event stands.
    pub key: Option<Pointer>,
    /// What to do if another execution is in the way.
    pub on_locked: OnLocked,
    /// How far a signed time may be from now.
    pub tolerance: Duration,
    /// How long a signed body is remembered, if its sender signs no id: a copy of it starts nothing. None: not at all.
    pub replay_memory: Option<Ttl>,
}
