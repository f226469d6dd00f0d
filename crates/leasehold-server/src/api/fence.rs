//! Whether a token is still good.

use axum::extract::State;
use leasehold::model::{LockName, Token};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::lease::LockPath;
use crate::access::{Caller, Worker};
use crate::body::Json;
use crate::problem::{Answer, Problem};
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check))
}

/// Which token.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FenceBody {
    /// As the work has it from its lease.
    token: Token,
}

/// The token is good: its lease is alive.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Fenced {
    /// Always true.
    success: bool,
    /// Always true.
    valid: bool,
    /// The lock.
    name: LockName,
    /// The token that was asked about.
    token: Token,
    /// The newest token of the lock: the same, unless several hold it.
    newest: Token,
    /// Who has the lease.
    holder: String,
    /// Until when, unless renewed.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Ask whether a token is still good. For a resource that keeps no memory of its own of the highest token.
#[utoipa::path(
    post, path = "/api/v1/fence/{name}", tag = "locks", operation_id = "checkFence",
    params(("name" = LockName, Path, description = "The lock; a '/' is written %2F")),
    request_body = FenceBody,
    responses(
        (status = OK, body = Fenced),
        (status = CONFLICT, description = "Its lease has ended: refuse the work", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn check(
    State(app): State<App>,
    _: Caller<Worker>,
    LockPath(name): LockPath,
    Json(FenceBody { token }): Json<FenceBody>,
) -> Answer<axum::Json<Fenced>> {
    let status = app.leasehold().check_fence(&name, token).await?;
    let held = status.holders.iter().find(|held| held.token == token);
    let held = held.expect("a token is good only if its lease is there");
    Ok(axum::Json(Fenced {
        success: true,
        valid: true,
        name,
        token,
        newest: status.token,
        holder: held.holder.to_string(),
        expires_at: format!("{:#}", held.expires_at),
    }))
}
