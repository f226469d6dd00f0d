//! The server, its builder and its settings.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use leasehold::Leasehold;
use leasehold::model::{Ttl, WorkflowName};
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Authenticator, Owners, Quota, TaskOwners};
use crate::api::store::ProtocolState;
use crate::event_stream::EventStream;
use crate::metrics::MetricsRegistry;
use crate::problem::Problem;
use crate::router;
use crate::terraform::TerraformOptions;
use crate::workflows::{Trigger, Workflow};

/// HTTP server over one store. The server keeps no state that matters outside the store, so any
/// number of servers may run over the same store. A running server also runs the background
/// maintenance of the store, such as expiring abandoned leases.
#[derive(Clone)]
pub struct Server {
    app: App,
}

/// Builder of a [`Server`].
#[must_use = "the builder does nothing until `build` is called"]
pub struct ServerBuilder {
    leasehold: Leasehold,
    access: Access,
    limits: Limits,
    maintenance: Maintenance,
    default_ttl: Option<Ttl>,
    audit: Audit,
    terraform: TerraformOptions,
    public_metrics: bool,
    plain_metric_names: bool,
    workflows: Vec<Workflow>,
    triggers: Vec<Trigger>,
    maintenance_enabled: bool,
}

/// Limits of requests and connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum size of a request body.
    pub body_bytes: usize,
    /// Timeout for receiving a request body.
    pub body_time: Duration,
    /// Timeout for receiving the headers of a request, and for a TLS handshake.
    pub header_time: Duration,
    /// Maximum idle time of a connection between two requests.
    pub idle_time: Duration,
    /// Maximum time that a request may wait for a lock or a task.
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

/// Optional events that a server records in the history of locks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Audit {
    /// Whether each renewal of a lock lease through this server is recorded.
    pub renewals: bool,
}

/// State that all handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

struct Shared {
    leasehold: Leasehold,
    metrics: MetricsRegistry,
    authenticator: Authenticator,
    limits: Limits,
    default_ttl: Option<Ttl>,
    audit: Audit,
    terraform: TerraformOptions,
    workflows: Vec<Workflow>,
    triggers: Vec<Trigger>,
    draining: CancellationToken,
    protocol_state: ProtocolState,
    owners: Owners,
    task_owners: TaskOwners,
    quota: Quota,
    event_stream: EventStream,
    /// Background maintenance; ends when the server is dropped.
    _maintenance: Option<(leasehold::Maintenance, Option<leasehold::Maintenance>)>,
}

impl Server {
    /// Returns a builder of a server over this store. By default the server accepts only callers
    /// with a token.
    pub fn builder(leasehold: Leasehold) -> ServerBuilder {
        let (limits, terraform) = (Limits::default(), TerraformOptions::default());
        ServerBuilder {
            leasehold,
            access: Access::Tokens(Vec::new()),
            limits,
            maintenance: Maintenance::default(),
            default_ttl: None,
            audit: Audit::default(),
            terraform,
            public_metrics: false,
            plain_metric_names: false,
            workflows: Vec::new(),
            triggers: Vec::new(),
            maintenance_enabled: true,
        }
    }

    /// Returns all routes of the server, to be mounted in another program or served by
    /// [`listen`](crate::listen).
    pub fn router(&self) -> Router {
        router::router(self.app.clone())
    }

    /// Returns the `OpenAPI` document, as served at `/openapi.json`.
    pub fn openapi() -> String {
        crate::openapi::text()
    }

    /// Starts draining: `/readyz` fails, the server rejects new executions and new waits, and waiting
    /// requests are answered with `DRAINING`. Requests and executions that have started may finish.
    pub fn drain(&self) {
        self.app.0.draining.cancel();
    }

    /// Returns the limits of requests and connections.
    pub(crate) fn limits(&self) -> Limits {
        self.app.limits()
    }
}

impl ServerBuilder {
    /// Sets which callers are accepted.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the limits of requests and connections.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the intervals of the background maintenance.
    pub fn maintenance(mut self, maintenance: Maintenance) -> Self {
        self.maintenance = maintenance;
        self
    }

    /// Sets the default TTL of leases on locks and tasks, for requests without a TTL. Without this
    /// setting the default of the store applies.
    pub fn default_ttl(mut self, ttl: Option<Ttl>) -> Self {
        self.default_ttl = ttl;
        self
    }

    /// Sets which optional events the server records in the history.
    pub fn audit(mut self, audit: Audit) -> Self {
        self.audit = audit;
        self
    }

    /// Sets the options of the Terraform backend.
    pub fn terraform(mut self, options: TerraformOptions) -> Self {
        self.terraform = options;
        self
    }

    /// Serves `/metrics` without authentication.
    pub fn public_metrics(mut self) -> Self {
        self.public_metrics = true;
        self
    }

    /// Adds metrics with unprefixed names, such as `lock_conflicts_total`, to `/metrics`, in
    /// addition to those with the prefix `leasehold_`.
    pub fn plain_metric_names(mut self) -> Self {
        self.plain_metric_names = true;
        self
    }

    /// Sets the workflows that callers can start through this server.
    pub fn workflows(mut self, workflows: Vec<Workflow>) -> Self {
        self.workflows = workflows;
        self
    }

    /// Sets the webhook triggers that start workflows.
    pub fn triggers(mut self, triggers: Vec<Trigger>) -> Self {
        self.triggers = triggers;
        self
    }

    /// Disables recovery, sweeping, schedules and retention in this server. Unless another process
    /// runs them, leases of dead workers and dead holders never expire. Also meant for tests that
    /// use a manual clock.
    pub fn without_maintenance(mut self) -> Self {
        self.maintenance_enabled = false;
        self
    }

    /// Builds the server and starts its background maintenance.
    pub fn build(self) -> Server {
        let Self {
            leasehold,
            access,
            limits,
            terraform,
            public_metrics,
            workflows,
            triggers,
            maintenance_enabled,
            ..
        } = self;
        let leasehold = if self.audit.renewals { leasehold.logging_renewals() } else { leasehold };
        let (leasehold, mut metrics) = MetricsRegistry::new(&leasehold, public_metrics);
        metrics.plain_names = self.plain_metric_names;
        let authenticator = Authenticator::new(leasehold.clone(), access);
        let draining = CancellationToken::new();
        let event_stream = EventStream::new(leasehold.clone(), draining.clone());
        // The clients may all run on hosts where no process does the maintenance. A store without
        // tasks has no task maintenance.
        let maintenance = maintenance_enabled.then(|| {
            let Maintenance { recover_every, sweep_every } = self.maintenance;
            let sweeper = leasehold.maintain_locks(sweep_every, limits.forget_locks_after);
            (sweeper, leasehold.maintain_tasks(recover_every).ok())
        });
        let shared = Shared {
            leasehold,
            metrics,
            authenticator,
            limits,
            default_ttl: self.default_ttl,
            audit: self.audit,
            terraform,
            workflows,
            triggers,
            draining,
            protocol_state: ProtocolState::new(),
            owners: Owners::default(),
            task_owners: TaskOwners::default(),
            quota: Quota::default(),
            event_stream,
            _maintenance: maintenance,
        };
        Server { app: App(Arc::new(shared)) }
    }
}

impl App {
    pub(crate) fn owners(&self) -> &Owners {
        &self.0.owners
    }

    pub(crate) fn quota(&self) -> &Quota {
        &self.0.quota
    }

    pub(crate) fn task_owners(&self) -> &TaskOwners {
        &self.0.task_owners
    }

    pub(crate) fn leasehold(&self) -> &Leasehold {
        &self.0.leasehold
    }

    pub(crate) fn metrics(&self) -> &MetricsRegistry {
        &self.0.metrics
    }

    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.0.authenticator
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.limits
    }

    /// Whether renewals are recorded in the history.
    pub(crate) fn logs_renewals(&self) -> bool {
        self.0.audit.renewals
    }

    /// Returns the TTL of leases for requests without a TTL.
    pub(crate) fn default_ttl(&self) -> Option<Ttl> {
        self.0.default_ttl
    }

    pub(crate) fn event_stream(&self) -> &EventStream {
        &self.0.event_stream
    }

    pub(crate) fn terraform(&self) -> TerraformOptions {
        self.0.terraform
    }

    /// Returns the workflows that callers can start through this server.
    pub(crate) fn workflows(&self) -> &[Workflow] {
        &self.0.workflows
    }

    /// Returns the workflow with this name, or the problem `UNKNOWN_WORKFLOW`.
    pub(crate) fn workflow(&self, name: &WorkflowName) -> Result<&Workflow, Problem> {
        let found = self.0.workflows.iter().find(|workflow| workflow.name == *name);
        found.ok_or_else(|| {
            let problem = Problem::new("UNKNOWN_WORKFLOW", format!("there is no workflow '{name}'"));
            problem.hint("list the workflows with GET /api/v1/workflows; they are defined in leasehold.toml")
        })
    }

    /// Returns the trigger with this id.
    pub(crate) fn trigger(&self, id: &str) -> Option<&Trigger> {
        self.0.triggers.iter().find(|trigger| trigger.id == id)
    }

    /// Returns the temporary state of the store protocol.
    pub(crate) fn protocol_state(&self) -> &ProtocolState {
        &self.0.protocol_state
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Waits for `work`, or returns the problem `DRAINING` as soon as the server starts draining.
    pub(crate) async fn unless_draining<T>(
        &self,
        work: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.0.draining.cancelled() => Err(draining()),
        }
    }

    /// Returns the problem `DRAINING` if the server is draining.
    pub(crate) fn refuse_when_draining(&self) -> Result<(), Problem> {
        if self.is_draining() { Err(draining()) } else { Ok(()) }
    }
}

fn draining() -> Problem {
    let problem = Problem::new("DRAINING", "the server is stopping");
    problem
        .hint("retry: another server, or this one after its restart, will respond")
        .retry_after(Duration::from_secs(1))
}
