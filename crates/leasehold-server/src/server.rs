//! State of a server that all its handlers share, and its settings.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use leasehold::Leasehold;
use leasehold::model::{Ttl, WorkflowName};
use tokio_util::sync::CancellationToken;

use crate::access::{Authenticator, Owners, Quota, TaskOwners};
use crate::api::store::ProtocolState;
use crate::dashboard::DashboardState;
use crate::metrics::MetricsRegistry;
use crate::problem::Problem;
use crate::streams::{EventStream, TaskStream};
use crate::terraform::StateWrites;
use crate::workflows::{Trigger, Workflow};

/// Limits of requests and connections.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum size of a request body.
    pub body_bytes: usize,
    /// Timeout for receiving a request body.
    pub body_time: Duration,
    /// Timeout for receiving the headers of a request, and for a TLS handshake.
    pub header_time: Duration,
    /// Maximum idle time of a connection between two requests.
    pub idle_time: Duration,
    /// Maximum time that a request may wait for a lock, a task, or earlier changes of Terraform states.
    pub wait: Duration,
    /// Write timeout: maximum time during which the client reads no byte of a response.
    pub write_time: Duration,
    /// Maximum number of concurrent connections.
    pub connections: usize,
    /// Maximum number of concurrent connections from one IP address.
    pub connections_per_address: usize,
    /// Maximum number of concurrent requests of one token.
    pub requests_per_token: usize,
    /// Time that running requests and executions get to finish when the server stops.
    pub grace: Duration,
    /// Time without a grant after which an idle lock is deleted; `None` keeps every lock.
    pub forget_locks_after: Option<Ttl>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 1024 * 1024,
            body_time: Duration::from_secs(10),
            header_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(75),
            wait: Duration::from_mins(1),
            write_time: Duration::from_secs(30),
            connections: 20_000,
            connections_per_address: 10_000,
            requests_per_token: 10_000,
            grace: Duration::from_secs(10),
            forget_locks_after: Some(leasehold::FORGET_LOCKS_AFTER),
        }
    }
}

/// Intervals of the background maintenance of the store.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Maintenance {
    /// Interval of the passes that expire task leases of dead workers, make due tasks ready and
    /// delete old tasks. Each pass starts after a random delay between half of this interval and
    /// the whole interval.
    pub recover_every: Duration,
    /// Interval of the passes that expire lock leases of dead holders and delete idle locks.
    pub sweep_every: Duration,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self { recover_every: Duration::from_secs(2), sweep_every: Duration::from_secs(2) }
    }
}

/// Options of the Terraform backend.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct TerraformOptions {
    /// TTL of a lock, counted from LOCK and from each write of the state. The client sends no
    /// heartbeats in between, so the TTL has to exceed the longest step of an apply. `?ttl=2h` in
    /// the client's `lock_address` overrides it.
    pub ttl: Ttl,
    /// Maximum size of a state.
    pub state_bytes: usize,
    /// Maximum number of earlier versions that are kept.
    pub versions: usize,
    /// Maximum age of an earlier version, counted from its write.
    pub versions_for: Ttl,
}

impl Default for TerraformOptions {
    fn default() -> Self {
        Self {
            ttl: Ttl::from_secs(24 * 3600),
            state_bytes: 32 * 1024 * 1024,
            versions: 50,
            versions_for: Ttl::from_secs(90 * 24 * 3600),
        }
    }
}

/// Optional events that a server records in the history of locks.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Audit {
    /// Whether each renewal of a lock lease through this server is recorded.
    pub renewals: bool,
}

/// Options of a server, as set by its builder.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) limits: Limits,
    pub(crate) default_ttl: Option<Ttl>,
    pub(crate) audit: Audit,
    pub(crate) terraform: TerraformOptions,
    pub(crate) public_metrics: bool,
    pub(crate) plain_metric_names: bool,
    pub(crate) workflows: Vec<Workflow>,
    pub(crate) triggers: Vec<Trigger>,
    pub(crate) without_dashboard: bool,
}

/// State that all handlers share.
#[derive(Clone)]
pub(crate) struct App(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) leasehold: Leasehold,
    pub(crate) metrics: MetricsRegistry,
    pub(crate) authenticator: Authenticator,
    pub(crate) options: Options,
    pub(crate) draining: CancellationToken,
    pub(crate) protocol_state: ProtocolState,
    pub(crate) owners: Owners,
    pub(crate) task_owners: TaskOwners,
    pub(crate) quota: Quota,
    pub(crate) event_stream: EventStream,
    pub(crate) task_stream: TaskStream,
    pub(crate) dashboard: DashboardState,
    pub(crate) state_writes: StateWrites,
    /// Background maintenance; ends when the server is dropped.
    pub(crate) maintenance: Option<(leasehold::Maintenance, Option<leasehold::Maintenance>)>,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl FromRequestParts<Self> for App {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, app: &Self) -> Result<Self, Infallible> {
        Ok(app.clone())
    }
}

impl App {
    /// Returns the workflow with this name, or the problem `UNKNOWN_WORKFLOW`.
    pub(crate) fn workflow(&self, name: &WorkflowName) -> Result<&Workflow, Problem> {
        let found = self.options.workflows.iter().find(|workflow| workflow.name == *name);
        found.ok_or_else(|| {
            let problem = Problem::new("UNKNOWN_WORKFLOW", format!("there is no workflow '{name}'"));
            problem.hint("list the workflows with GET /api/v1/workflows; they are defined in leasehold.toml")
        })
    }

    /// Waits for `work`, or returns the problem `DRAINING` as soon as the server starts draining.
    pub(crate) async fn unless_draining<T>(&self, work: impl Future<Output = T>) -> Result<T, Problem> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.draining.cancelled() => Err(draining()),
        }
    }

    pub(crate) fn refuse_when_draining(&self) -> Result<(), Problem> {
        if self.draining.is_cancelled() { Err(draining()) } else { Ok(()) }
    }
}

fn draining() -> Problem {
    let problem = Problem::new("DRAINING", "the server is stopping");
    problem
        .hint("retry: another server, or this one after its restart, will respond")
        .retry_after(Duration::from_secs(1))
}
