//! What a server is made of, and its settings.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use leasehold::Leasehold;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Gatekeeper};
use crate::api::store::StoreDesk;
use crate::problem::Problem;
use crate::router;

/// A server over one store. It holds nothing of its own that matters: any number may run over the same store.
#[derive(Clone)]
pub struct Server {
    app: App,
}

/// The settings of a server.
pub struct ServerBuilder {
    leasehold: Leasehold,
    access: Access,
    limits: Limits,
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
    /// How many connections there may be at once.
    pub connections: usize,
    /// How long requests and runs have to end when the server stops.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 1024 * 1024,
            body_time: Duration::from_secs(10),
            header_time: Duration::from_secs(10),
            wait: Duration::from_secs(60),
            connections: 20_000,
            grace: Duration::from_secs(10),
        }
    }
}

/// What handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

struct Shared {
    leasehold: Leasehold,
    gate: Gatekeeper,
    limits: Limits,
    draining: CancellationToken,
    store_desk: StoreDesk,
}

impl Server {
    /// Begins to make a server over this store. Only callers with a token are let in, if nothing else is said.
    pub fn builder(leasehold: Leasehold) -> ServerBuilder {
        ServerBuilder { leasehold, access: Access::Tokens(Vec::new()), limits: Limits::default() }
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

    /// The server.
    pub fn build(self) -> Server {
        let Self { leasehold, access, limits } = self;
        let gate = Gatekeeper::new(leasehold.clone(), access);
        let draining = CancellationToken::new();
        let store_desk = StoreDesk::new();
        Server { app: App(Arc::new(Shared { leasehold, gate, limits, draining, store_desk })) }
    }
}

impl App {
    pub(crate) fn leasehold(&self) -> &Leasehold {
        &self.0.leasehold
    }

    pub(crate) fn gate(&self) -> &Gatekeeper {
        &self.0.gate
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.limits
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
