//! Whether the server is alive, and whether it can serve.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::problem::{Answer, Problem};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// How it is.
#[derive(Serialize, ToSchema)]
struct Health {
    /// `ok`
    status: &'static str,
}

/// Alive: the process answers. Says nothing about the store.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = OK, body = Health)))]
async fn healthz() -> Response {
    axum::Json(Health { status: "ok" }).into_response()
}

/// Ready: the store answers, and the server is not about to stop.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses(
    (status = OK, body = Health),
    (status = SERVICE_UNAVAILABLE, body = Problem, content_type = "application/problem+json"),
))]
async fn readyz(State(app): State<App>) -> Answer<Response> {
    app.refuse_when_draining()?;
    app.leasehold().ping().await?;
    Ok(axum::Json(Health { status: "ok" }).into_response())
}
