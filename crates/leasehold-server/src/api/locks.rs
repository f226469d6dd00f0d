//! Locks over HTTP.

use std::time::Duration;

use axum::extract::{Path, State};
use leasehold::model::{LeaseId, LockName, Mode, Token, Ttl};
use leasehold::{LockBuilder, Strategy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Caller, Worker};
use crate::body::Json;
use crate::problem::{Answer, Problem};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(release))
}

/// Which lease.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaseBody {
    /// As acquire gave it.
    #[schema(value_type = uuid::Uuid)]
    lease_id: LeaseId,
    /// As acquire gave it.
    #[schema(value_type = u64)]
    token: Token,
}

/// It is done.
#[derive(Serialize, ToSchema)]
struct Done {
    /// Always true.
    success: bool,
}

/// Give a lock back; the next who waits has it in the same step.
#[utoipa::path(
    post, path = "/api/v1/locks/{name}/release", tag = "locks", operation_id = "releaseLock",
    params(("name" = String, Path, description = "The lock; a '/' is written %2F")),
    request_body = LeaseBody,
    responses(
        (status = OK, body = Done),
        (status = NOT_FOUND, description = "That lease does not hold the lock", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn release(
    State(app): State<App>,
    _: Caller<Worker>,
    Path(name): Path<String>,
    Json(lease): Json<LeaseBody>,
) -> Answer<axum::Json<Done>> {
    let name = LockName::new(name)?;
    app.leasehold().release(&name, lease.lease_id, lease.token).await?;
    Ok(axum::Json(Done { success: true }))
}
