//! What a server is made of, and its settings.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use leasehold::model::{Ttl, WorkflowName};
use leasehold::{Caretaker, Leasehold, Sweeper};
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Gatekeeper, Owners};
use crate::api::store::StoreDesk;
use crate::feed::Feed;
use crate::metrics::Meters;
use crate::problem::Problem;
use crate::router;
use crate::terraform::TerraformOptions;
use crate::workflows::{Trigger, Workflow};

/// What nobody comes back for is looked for this often.
const UPKEEP: Duration = Duration::from_secs(2);

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
    terraform: TerraformOptions,
    metrics_for_everyone: bool,
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
    /// How long headers may take to arrive.
    pub header_time: Duration,
    /// The longest a request may wait for a lock or a task.
    pub wait: Duration,
    /// How long the other side may take to read something of an answer.
    pub write_time: Duration,
    /// How many connections there may be at once.
    pub connections: usize,
    /// How many of them may come from one address.
    pub connections_per_address: usize,
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
            wait: Duration::from_mins(1),
            write_time: Duration::from_secs(30),
            connections: 20_000,
            connections_per_address: 10_000,
            grace: Duration::from_secs(10),
            forget_locks_after: Some(leasehold::FORGET_AFTER),
        }
    }
}

/// What handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

struct Shared {
    leasehold: Leasehold,
    meters: Meters,
    gate: Gatekeeper,
    limits: Limits,
    terraform: TerraformOptions,
    workflows: Vec<Workflow>,
    triggers: Vec<Trigger>,
    draining: CancellationToken,
    store_desk: StoreDesk,
    owners: Owners,
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
            terraform,
            metrics_for_everyone: false,
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
        let Self { leasehold, access, limits, terraform, metrics_for_everyone, workflows, triggers, upkeep } =
            self;
        let (leasehold, meters) = Meters::new(&leasehold, metrics_for_everyone);
        let gate = Gatekeeper::new(leasehold.clone(), access);
        let draining = CancellationToken::new();
        let feed = Feed::new(leasehold.clone(), draining.clone());
        // Its clients may all be elsewhere, where nobody else would do it. A store without tasks has none to look after.
        let upkeep = upkeep.then(|| {
            let sweeper = leasehold.sweeper_forgetting(UPKEEP, limits.forget_locks_after);
            (sweeper, leasehold.caretaker(UPKEEP).ok())
        });
        let shared = Shared {
            leasehold,
            meters,
            gate,
            limits,
            terraform,
            workflows,
            triggers,
            draining,
            store_desk: StoreDesk::new(),
            owners: Owners::default(),
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
