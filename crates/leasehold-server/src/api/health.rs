//! Whether the server is alive, and whether it can serve.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(None => healthz)).routes(routes!(None => readyz))
}

/// How it is.
#[derive(Serialize, ToSchema)]
struct GuardStatus {
    /// `ok`
    status: &'static str,
}

/// Alive: the process answers. Says nothing about the store.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = OK, body = GuardStatus)))]
async fn healthz() -> Response {
    axum::Json(GuardStatus { status: "ok" }).into_response()
}

/// Ready: the store answers, and the server is not about to stop.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = OK, body = GuardStatus),
))]
async fn readyz(State(app): State<App>) -> Answer<Response> {
    app.refuse_when_draining()?;
    app.leasehold().ping().await?;
    Ok(axum::Json(GuardStatus { status: "ok" }).into_response())
}
