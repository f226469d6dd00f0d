//! Queries for earlier versions of a state.

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::head::{Found, Version};
use super::pieces;
use super::quiet::Reply;
use super::routes::json;
use super::state::docs;
use crate::access::{Caller, Reader, Role, Worker};
use crate::described::StateName;
use crate::problem::Problem;
use crate::roles::routes;
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(Some(Role::Reader) => list))
        .routes(routes!(Some(Role::Worker) => show))
}

/// The versions of a state, newest first.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StateVersions {
    /// The versions that are kept.
    versions: Vec<StateVersion>,
}

/// One version of a state.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StateVersion {
    /// Names this version.
    id: String,
    /// The client's own count.
    serial: u64,
    /// What the client calls the whole line of versions.
    lineage: String,
    /// The version of the client.
    terraform_version: String,
    /// How large it is.
    bytes: u64,
    /// Of its text, in hexadecimal.
    sha256: String,
    /// When it was written.
    #[schema(format = DateTime)]
    written_at: String,
    /// Whose token it was written with.
    written_by: String,
    /// The token of the lock that it was written under.
    token: u64,
    /// Whether it is the state as it is now.
    current: bool,
}

/// The versions of a state that are kept.
#[utoipa::path(
    get, path = "/tf/{name}/history", tag = "terraform", operation_id = "listTerraformStateVersions",
    params(("name" = StateName, Path, description = "The state; a '/' is written %2F")),
    responses(
        (status = OK, body = StateVersions),
        (status = NOT_FOUND, description = "There is no such state, and never was", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn list(State(app): State<App>, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, _) = request.into_parts();
    Caller::<Reader>::from_request_parts(&mut parts, &app).await?;
    let store = app.leasehold().store();
    let head = Found::look(docs(&*store)?, &name).await?.head;
    if head.versions.is_empty() {
        return Err(unknown(&name).into());
    }
    let current = head.current().map(|version| version.id.clone());
    let view = |version: &Version| StateVersion::of(version, current.as_ref() == Some(&version.id));
    Ok(axum::Json(StateVersions { versions: head.versions.iter().map(view).collect() }).into_response())
}

/// An earlier version of a state, by its serial or its id. Of several with one serial, the newest.
#[utoipa::path(
    get, path = "/tf/{name}/history/{serial}", tag = "terraform", operation_id = "getTerraformStateVersion",
    params(
        ("name" = StateName, Path, description = "The state; a '/' is written %2F"),
        ("serial" = String, Path, description = "The serial or the id of the version"),
    ),
    responses(
        (status = OK, description = "The state as it was", body = Object, content_type = "application/json"),
        (status = NOT_FOUND, description = "There is no such version, or no longer", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn show(
    State(app): State<App>,
    Path((name, serial)): Path<(String, String)>,
    request: Request,
) -> Reply {
    let (mut parts, _) = request.into_parts();
    Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let store = app.leasehold().store();
    let docs = docs(&*store)?;
    let head = Found::look(docs, &name).await?.head;
    let wanted = |version: &&Version| version.id == serial || version.serial.to_string() == serial;
    let Some(version) = head.versions.iter().find(wanted) else {
        let detail = format!("the state '{name}' has no version {serial}, or no longer");
        return Err(Problem::new("UNKNOWN_STATE", detail).into());
    };
    Ok(json(pieces::read(docs, &name, version).await?))
}

impl StateVersion {
    fn of(version: &Version, current: bool) -> Self {
        Self {
            id: version.id.clone(),
            serial: version.serial,
            lineage: version.lineage.clone(),
            terraform_version: version.client.clone(),
            bytes: version.bytes,
            sha256: version.sha256.clone(),
            written_at: format!("{:#}", version.at),
            written_by: version.by.clone(),
            token: version.token.get(),
            current,
        }
    }
}

/// Returns the problem for a state that does not exist.
pub(super) fn unknown(name: &str) -> Problem {
    Problem::new("UNKNOWN_STATE", format!("there is no state '{name}'"))
}
