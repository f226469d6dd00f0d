//! The server and its builder, all routes, and the middleware that every request passes through.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use leasehold::Leasehold;
use leasehold::model::Ttl;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use crate::access::{Access, Authenticator, Owners, Quota, TaskOwners};
use crate::api;
use crate::api::store::ProtocolState;
use crate::dashboard::{self, DashboardState};
use crate::metrics::MetricsRegistry;
use crate::openapi::document::{self, Bounds};
use crate::problem::Problem;
use crate::request::request_id::{HiddenTexts, with_request_id};
use crate::server::{App, Audit, Limits, Maintenance, Options, Shared, TerraformOptions};
use crate::streams::{EventStream, TaskStream};
use crate::terraform::{self, StateWrites};
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
    maintenance: Maintenance,
    maintenance_enabled: bool,
    options: Options,
}

impl Server {
    /// Returns a builder of a server over this store. By default the server accepts only callers
    /// with a token.
    pub fn builder(leasehold: Leasehold) -> ServerBuilder {
        let (access, maintenance) = (Access::Tokens(Vec::new()), Maintenance::default());
        let options = Options::default();
        ServerBuilder { leasehold, access, maintenance, maintenance_enabled: true, options }
    }

    /// Returns all routes of the server, to be mounted in another program or served by
    /// [`listen`](crate::listen).
    pub fn router(&self) -> Router {
        router(self.app.clone())
    }

    /// Returns the `OpenAPI` document, as a server with tokens serves it at `/openapi.json`.
    pub fn openapi() -> String {
        let (_, description) = documented_routes().split_for_parts();
        let document = document::finish(description, Bounds::default());
        document.to_pretty_json().expect("the document is serializable")
    }

    /// Starts draining: `/readyz` fails, the server rejects new executions and new waits, and waiting
    /// requests are answered with `DRAINING`. Requests and executions that have started may finish.
    pub fn drain(&self) {
        self.app.draining.cancel();
    }

    pub(crate) fn limits(&self) -> Limits {
        self.app.options.limits
    }

    /// Waits until all changes of Terraform states have ended, including those whose clients have
    /// disconnected.
    pub(crate) async fn finish_state_writes(&self) {
        self.app.state_writes.finished().await;
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
        self.options.limits = limits;
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
        self.options.default_ttl = ttl;
        self
    }

    /// Sets which optional events the server records in the history.
    pub fn audit(mut self, audit: Audit) -> Self {
        self.options.audit = audit;
        self
    }

    /// Sets the options of the Terraform backend.
    pub fn terraform(mut self, options: TerraformOptions) -> Self {
        self.options.terraform = options;
        self
    }

    /// Serves `/metrics` without authentication.
    pub fn public_metrics(mut self) -> Self {
        self.options.public_metrics = true;
        self
    }

    /// Adds metrics with unprefixed names, such as `lock_conflicts_total`, to `/metrics`, in
    /// addition to those with the prefix `leasehold_`.
    pub fn plain_metric_names(mut self) -> Self {
        self.options.plain_metric_names = true;
        self
    }

    /// Sets the workflows that callers can start through this server.
    pub fn workflows(mut self, workflows: Vec<Workflow>) -> Self {
        self.options.workflows = workflows;
        self
    }

    /// Sets the webhook triggers that start workflows.
    pub fn triggers(mut self, triggers: Vec<Trigger>) -> Self {
        self.options.triggers = triggers;
        self
    }

    /// Serves only the API, without the dashboard and its figures.
    pub fn without_dashboard(mut self) -> Self {
        self.options.without_dashboard = true;
        self
    }

    /// Disables recovery, sweeping, schedules and retention in this server, for a store that another
    /// process maintains, and for tests that use a manual clock.
    ///
    /// Leases expire without maintenance: the next caller that acquires the lock, or leases tasks of the
    /// queue, takes them over. Without any maintenance, expired leases and tickets stay visible until then,
    /// schedules add no tasks, and idle locks and finished tasks are kept.
    pub fn without_maintenance(mut self) -> Self {
        self.maintenance_enabled = false;
        self
    }

    /// Builds the server and starts its background maintenance.
    pub fn build(self) -> Server {
        let Self { leasehold, access, maintenance, maintenance_enabled, options } = self;
        let leasehold = if options.audit.renewals { leasehold.logging_renewals() } else { leasehold };
        let (leasehold, metrics) = MetricsRegistry::new(&leasehold);
        let authenticator = Authenticator::new(leasehold.clone(), access);
        let draining = CancellationToken::new();
        let event_stream = EventStream::new(leasehold.clone(), draining.clone());
        let task_stream = TaskStream::new(leasehold.clone(), draining.clone());
        // The clients may all run on hosts where no process does the maintenance. A store without
        // tasks has no task maintenance.
        let maintenance = maintenance_enabled.then(|| {
            let forget_after = options.limits.forget_locks_after;
            let sweeper = leasehold.maintain_locks(maintenance.sweep_every, forget_after);
            (sweeper, leasehold.maintain_tasks(maintenance.recover_every).ok())
        });
        let shared = Shared {
            leasehold,
            metrics,
            authenticator,
            options,
            draining,
            protocol_state: ProtocolState::new(),
            owners: Owners::default(),
            task_owners: TaskOwners::default(),
            quota: Quota::default(),
            event_stream,
            task_stream,
            dashboard: DashboardState::default(),
            state_writes: StateWrites::default(),
            maintenance,
        };
        let shared = Arc::new(shared);
        // A server without maintenance writes nothing by itself. The builder may run outside of a runtime.
        if shared.maintenance.is_some()
            && !shared.options.without_dashboard
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(dashboard::record_figures(Arc::downgrade(&shared)));
        }
        Server { app: App(shared) }
    }
}

fn router(app: App) -> Router {
    let (router, description) = documented_routes().split_for_parts();
    let (wait, ttl) = (app.options.limits.wait, app.leasehold.capabilities().min_ttl);
    let bounds = Bounds { wait, ttl, is_open: app.authenticator.is_open() };
    let description = document::finish(description, bounds);
    let hidden = HiddenTexts::address(&app.leasehold.store().url());
    let router = if app.options.without_dashboard { router } else { router.merge(dashboard::routes()) };
    router
        .route("/openapi.json", document::route(&description))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state((app.clone(), hidden), around_request))
        .with_state(app)
}

/// Returns the routes that the `OpenAPI` document describes: all routes except `/openapi.json`.
fn documented_routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(document::base_document())
        .merge(api::locks::routes())
        .merge(api::tasks::enqueue::routes())
        .merge(api::tasks::lease::routes())
        .merge(api::tasks::settle::routes())
        .merge(api::tasks::get::routes())
        .merge(api::tasks::queues::routes())
        .merge(api::tasks::schedules::routes())
        .merge(api::lease::routes())
        .merge(api::events::routes())
        .merge(api::metrics::routes())
        .merge(terraform::routes())
        .merge(api::workflows::routes())
        .merge(api::executions::routes())
        .merge(api::webhooks::routes())
        .merge(api::store::routes())
}

/// Middleware of every request: counts it, assigns its id, and adds the headers of the store protocol.
/// This is one layer, because every layer costs each request two allocations.
async fn around_request(
    State((app, hidden)): State<(App, HiddenTexts)>,
    request: Request,
    next: Next,
) -> Response {
    let run = |request| api::store::add_protocol_headers(&app, request, next);
    app.metrics.requests.measure(request, |request| with_request_id(&hidden, request, run)).await
}

async fn unknown(uri: Uri) -> Problem {
    let problem = Problem::new("UNKNOWN_PATH", format!("there is no path {}", uri.path()));
    problem.hint("see /openapi.json; encode '/' in a name as %2F")
}

async fn not_allowed(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not support {method}", uri.path());
    Problem::new("METHOD_NOT_ALLOWED", detail).hint("see /openapi.json")
}
