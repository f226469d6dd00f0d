//! All routes of the server and the middleware that every request passes through.

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use utoipa_axum::router::OpenApiRouter;

use crate::api;
use crate::metrics::count_requests;
use crate::openapi::{self, Bounds};
use crate::problem::Problem;
use crate::request_id::{HiddenTexts, with_request_id};
use crate::server::App;
use crate::terraform;

/// Returns the router with all routes, the fallbacks and the middleware.
pub(crate) fn router(app: App) -> Router {
    let (router, description) = documented_routes().split_for_parts();
    let bounds = Bounds { wait: app.limits().wait, ttl: app.leasehold().capabilities().min_ttl };
    let description = openapi::finish(description, bounds);
    let hidden = HiddenTexts::address(&app.leasehold().store().url());
    router
        .route("/openapi.json", openapi::route(&description))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(app.clone(), api::store::add_protocol_headers))
        .layer(from_fn_with_state(hidden, with_request_id))
        .layer(from_fn_with_state(app.clone(), count_requests))
        .with_state(app)
}

/// Returns the routes that the `OpenAPI` document describes: all routes except `/openapi.json`.
pub(crate) fn documented_routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base_document())
        .merge(api::health::routes())
        .merge(api::locks::routes())
        .merge(api::tasks::routes())
        .merge(api::acquire::routes())
        .merge(api::fence::routes())
        .merge(api::history::routes())
        .merge(api::events::routes())
        .merge(api::metrics::routes())
        .merge(terraform::routes())
        .merge(api::workflows::routes())
        .merge(api::executions::routes())
        .merge(api::webhooks::routes())
        .merge(api::store::routes())
}

async fn unknown(uri: Uri) -> Problem {
    let problem = Problem::new("UNKNOWN_PATH", format!("there is no path {}", uri.path()));
    problem.hint("see /openapi.json; encode '/' in a name as %2F")
}

async fn not_allowed(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not support {method}", uri.path());
    Problem::new("METHOD_NOT_ALLOWED", detail).hint("see /openapi.json")
}
