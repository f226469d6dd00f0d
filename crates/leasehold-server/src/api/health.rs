//! Liveness and readiness probes.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use crate::problem::ApiResult;
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(None => healthz)).routes(routes!(None => readyz))
}

/// Health of the server.
#[derive(Serialize, ToSchema)]
struct HealthStatus {
    /// Always `ok`.
    status: &'static str,
}

/// Liveness probe: succeeds while the process runs.
///
/// Does not check the store.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = OK, body = HealthStatus)))]
async fn healthz() -> Response {
    axum::Json(HealthStatus { status: "ok" }).into_response()
}

/// Readiness probe: succeeds if the store responds and the server is not stopping.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = OK, body = HealthStatus),
))]
async fn readyz(State(app): State<App>) -> ApiResult<Response> {
    app.refuse_when_draining()?;
    app.leasehold().ping().await?;
    Ok(axum::Json(HealthStatus { status: "ok" }).into_response())
}
