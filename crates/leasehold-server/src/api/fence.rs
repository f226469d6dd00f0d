//! Checks fencing tokens.

use axum::extract::State;
use leasehold::model::{LockName, Token};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::lease::LockPath;
use crate::access::{Caller, Worker};
use crate::body::Json;
use crate::problem::{ApiResult, Problem};
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check))
}

/// Fencing token to check.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FenceBody {
    /// Fencing token of the lease.
    token: Token,
}

/// Result for a token whose lease is active.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct FenceReply {
    /// Always true.
    success: bool,
    /// Always true.
    valid: bool,
    /// Name of the lock.
    name: LockName,
    /// Checked token.
    token: Token,
    /// Newest token of the lock; differs from `token` only if the lock has several holders.
    newest: Token,
    /// Name of the holder.
    holder: String,
    /// Time at which the lease expires unless it is renewed.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Checks whether the lease of a fencing token is active.
///
/// Meant for resources that cannot remember the highest token themselves.
#[utoipa::path(
    post, path = "/api/v1/fence/{name}", tag = "locks", operation_id = "checkFence",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F")),
    request_body = FenceBody,
    responses(
        (status = OK, body = FenceReply),
        (status = CONFLICT, description = "STALE_TOKEN: the lease has ended; the resource must reject the request", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn check(
    State(app): State<App>,
    _: Caller<Worker>,
    LockPath(name): LockPath,
    Json(FenceBody { token }): Json<FenceBody>,
) -> ApiResult<axum::Json<FenceReply>> {
    let status = app.leasehold().check_fence(&name, token).await?;
    let held = status.holders.iter().find(|held| held.token == token);
    let held = held.expect("a valid token belongs to an active lease");
    Ok(axum::Json(FenceReply {
        success: true,
        valid: true,
        name,
        token,
        newest: status.token,
        holder: held.holder.to_string(),
        expires_at: format!("{:#}", held.expires_at),
    }))
}
