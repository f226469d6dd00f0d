//! What a server is made of, and its settings.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use leasehold::model::{Ttl, WorkflowName};
use leasehold::{Caretaker, Leasehold, Sweeper};
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Gatekeeper, Owners, Quota, TaskOwners};
use crate::api::store::StoreDesk;
use crate::feed::Feed;
use crate::metrics::Meters;
use crate::problem::Problem;
use crate::router;
use crate::terraform::TerraformOptions;
use crate::workflows::{Trigger, Workflow};

/// A server over one store. It holds nothing of its own that matters: any number may run over the same store. While it is
/// there, it also clears away what nobody comes back for.
#[derive(Clone)]
pub struct Server {
    app: App,
}

/// The settings of a server.
#[must_use = "nothing is served until it is built"]
pub struct ServerBuilder {
    leasehold: Leasehold,
    access: Access,
    limits: Limits,
    maintenance: Maintenance,
    default_ttl: Option<Ttl>,
    audit: Audit,
    terraform: TerraformOptions,
    metrics_for_everyone: bool,
    plain_metric_names: bool,
    workflows: Vec<Workflow>,
    triggers: Vec<Trigger>,
    upkeep: bool,
}

/// What a request may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest body.
    pub body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_time: Duration,
    /// How long headers may take to arrive, and a TLS handshake.
    pub header_time: Duration,
    /// How long a connection may be idle between two requests.
    pub idle_time: Duration,
    /// The longest a request may wait for a lock or a task.
    pub wait: Duration,
    /// How long the other side may take to read something of an answer.
    pub write_time: Duration,
    /// How many connections there may be at once.
    pub connections: usize,
    /// How many of them may come from one address.
    pub connections_per_address: usize,
    /// How many requests of one token are answered at the same time.
    pub requests_per_token: usize,
    /// How long requests and runs have to end when the server stops.
    pub grace: Duration,
    /// How long a lock must not have been granted before it is forgotten; none keeps every lock.
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
            forget_locks_after: Some(leasehold::FORGET_AFTER),
        }
    }
}

/// How often a server looks after its store.
#[derive(Debug, Clone, Copy)]
pub struct Maintenance {
    /// Interval of the passes that end leases on tasks whose workers are gone, make due tasks ready and forget old ones.
    /// Each pass comes after half to all of this time, by chance.
    pub recover_every: Duration,
    /// Interval of the passes that end leases on locks whose holders are gone, and forget idle locks.
    pub sweep_every: Duration,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self { recover_every: Duration::from_secs(2), sweep_every: Duration::from_secs(2) }
    }
}

/// What a server writes into the history of locks only if it is asked to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Audit {
    /// Every renewal of a lease on a lock that comes through this server.
    pub renewals: bool,
}

/// What handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

struct Shared {
    leasehold: Leasehold,
    meters: Meters,
    gate: Gatekeeper,
    limits: Limits,
    default_ttl: Option<Ttl>,
    audit: Audit,
    terraform: TerraformOptions,
    workflows: Vec<Workflow>,
    triggers: Vec<Trigger>,
    draining: CancellationToken,
    store_desk: StoreDesk,
    owners: Owners,
    task_owners: TaskOwners,
    quota: Quota,
    feed: Feed,
    /// Ends with the server.
    _upkeep: Option<(Sweeper, Option<Caretaker>)>,
}

impl Server {
    /// Begins to make a server over this store. Only callers with a token are let in, if nothing else is said.
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
            metrics_for_everyone: false,
            plain_metric_names: false,
            workflows: Vec::new(),
            triggers: Vec::new(),
            upkeep: true,
        }
    }

    /// Everything it answers to, to be mounted in another program or served by [`listen`](crate::listen).
    pub fn router(&self) -> Router {
        router::router(self.app.clone())
    }

    /// The API's description, as at `/openapi.json`.
    pub fn openapi() -> String {
        crate::openapi::text()
    }

    /// From now on it says that it is stopping: `/readyz` fails, new runs and waits are refused, those that wait are
    /// sent away. What was begun may end.
    pub fn drain(&self) {
        self.app.0.draining.cancel();
    }

    /// What it may cost.
    pub(crate) fn limits(&self) -> Limits {
        self.app.limits()
    }
}

impl ServerBuilder {
    /// Who is let in.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// What a request may cost.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How often it looks after its store.
    pub fn maintenance(mut self, maintenance: Maintenance) -> Self {
        self.maintenance = maintenance;
        self
    }

    /// How long leases on locks and tasks last if a request does not say; the store's own default if it is not set.
    pub fn default_ttl(mut self, ttl: Option<Ttl>) -> Self {
        self.default_ttl = ttl;
        self
    }

    /// What it writes into the history besides what every server does.
    pub fn audit(mut self, audit: Audit) -> Self {
        self.audit = audit;
        self
    }

    /// How the Terraform backend behaves.
    pub fn terraform(mut self, options: TerraformOptions) -> Self {
        self.terraform = options;
        self
    }

    /// Shows `/metrics` to whoever asks, token or not.
    pub fn metrics_for_everyone(mut self) -> Self {
        self.metrics_for_everyone = true;
        self
    }

    /// Adds the plain names, such as `lock_conflicts_total`, to `/metrics`, beside those that begin with `leasehold_`.
    pub fn plain_metric_names(mut self) -> Self {
        self.plain_metric_names = true;
        self
    }

    /// The workflows that can be started here.
    pub fn workflows(mut self, workflows: Vec<Workflow>) -> Self {
        self.workflows = workflows;
        self
    }

    /// The webhooks that start them.
    pub fn triggers(mut self, triggers: Vec<Trigger>) -> Self {
        self.triggers = triggers;
        self
    }

    /// Leaves recovery, sweeping, schedules and retention to other processes. Without any that does it, leases of workers
    /// and holders that are gone are never ended. Also for tests that move the time by hand.
    pub fn without_upkeep(mut self) -> Self {
        self.upkeep = false;
        self
    }

    /// The server.
    pub fn build(self) -> Server {
        let Self {
            leasehold,
            access,
            limits,
            terraform,
            metrics_for_everyone,
            workflows,
            triggers,
            upkeep,
            ..
        } = self;
        let leasehold = if self.audit.renewals { leasehold.logging_renewals() } else { leasehold };
        let (leasehold, mut meters) = Meters::new(&leasehold, metrics_for_everyone);
        meters.plain_names = self.plain_metric_names;
        let gate = Gatekeeper::new(leasehold.clone(), access);
        let draining = CancellationToken::new();
        let feed = Feed::new(leasehold.clone(), draining.clone());
        // Its clients may all be elsewhere, where nobody else would do it. A store without tasks has none to look after.
        let upkeep = upkeep.then(|| {
            let Maintenance { recover_every, sweep_every } = self.maintenance;
            let sweeper = leasehold.sweeper_forgetting(sweep_every, limits.forget_locks_after);
            (sweeper, leasehold.caretaker(recover_every).ok())
        });
        let shared = Shared {
            leasehold,
            meters,
            gate,
            limits,
            default_ttl: self.default_ttl,
            audit: self.audit,
            terraform,
            workflows,
            triggers,
            draining,
            store_desk: StoreDesk::new(),
            owners: Owners::default(),
            task_owners: TaskOwners::default(),
            quota: Quota::default(),
            feed,
            _upkeep: upkeep,
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

    pub(crate) fn meters(&self) -> &Meters {
        &self.0.meters
    }

    pub(crate) fn gate(&self) -> &Gatekeeper {
        &self.0.gate
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.limits
    }

    /// Whether renewals are written into the history.
    pub(crate) fn logs_renewals(&self) -> bool {
        self.0.audit.renewals
    }

    /// How long leases last if a request does not say.
    pub(crate) fn default_ttl(&self) -> Option<Ttl> {
        self.0.default_ttl
    }

    pub(crate) fn feed(&self) -> &Feed {
        &self.0.feed
    }

    pub(crate) fn terraform(&self) -> TerraformOptions {
        self.0.terraform
    }

    /// The workflows that can be started here.
    pub(crate) fn workflows(&self) -> &[Workflow] {
        &self.0.workflows
    }

    /// The workflow of this name, which has to be one that can be started here.
    pub(crate) fn workflow(&self, name: &WorkflowName) -> Result<&Workflow, Problem> {
        let found = self.0.workflows.iter().find(|workflow| workflow.name == *name);
        found.ok_or_else(|| {
            let problem = Problem::new("UNKNOWN_WORKFLOW", format!("there is no workflow '{name}'"));
            problem.hint("see GET /api/v1/workflows; workflows stand in leasehold.toml")
        })
    }

    /// The trigger with this id.
    pub(crate) fn trigger(&self, id: &str) -> Option<&Trigger> {
        self.0.triggers.iter().find(|trigger| trigger.id == id)
    }

    /// What the store protocol remembers for a while.
    pub(crate) fn store_desk(&self) -> &StoreDesk {
        &self.0.store_desk
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Waits for something as long as the server is not about to stop.
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

    /// Refuses what is new when the server is about to stop.
    pub(crate) fn refuse_when_draining(&self) -> Result<(), Problem> {
        if self.is_draining() { Err(draining()) } else { Ok(()) }
    }
}

fn draining() -> Problem {
    let problem = Problem::new("DRAINING", "this server is stopping");
    problem
        .hint("try again: another one, or this one after its restart, will answer")
        .retry_after(Duration::from_secs(1))
}
