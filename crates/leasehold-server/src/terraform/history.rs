//! Queries for earlier versions of a state.

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::chunks;
use super::routes::{Reply, json};
use super::state::docs;
use super::state_index::{StoredIndex, Version};
use crate::access::{Caller, Reader, Role, Worker};
use crate::problem::Problem;
use crate::roles::routes;
use crate::schemas::StateName;
use crate::server::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(Some(Role::Reader) => list))
        .routes(routes!(Some(Role::Worker) => get_version))
}

/// Versions of a state.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StateVersions {
    /// Kept versions, newest first.
    versions: Vec<StateVersion>,
}

/// Version of a state.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StateVersion {
    /// Id of the version.
    id: String,
    /// Serial number that the client assigned.
    serial: u64,
    /// Lineage that the client assigned to all versions of the state.
    lineage: String,
    /// Version of the client.
    terraform_version: String,
    /// Size in bytes.
    bytes: u64,
    /// SHA-256 of the text, in hexadecimal.
    sha256: String,
    /// Time of the write.
    #[schema(format = DateTime)]
    written_at: String,
    /// Name of the API token of the write.
    written_by: String,
    /// Fencing token of the lock at the time of the write.
    token: u64,
    /// Whether this is the current version.
    current: bool,
}

/// Lists the kept versions of a state, newest first.
#[utoipa::path(
    get, path = "/tf/{name}/history", tag = "terraform", operation_id = "listTerraformStateVersions",
    params(("name" = StateName, Path, description = "Name of the state; encode '/' as %2F")),
    responses(
        (status = OK, body = StateVersions),
        (status = NOT_FOUND, description = "UNKNOWN_STATE: the state never existed", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn list(State(app): State<App>, Path(name): Path<String>, request: Request) -> Reply {
    let (mut parts, _) = request.into_parts();
    Caller::<Reader>::from_request_parts(&mut parts, &app).await?;
    let store = app.leasehold().store();
    let index = StoredIndex::load(docs(&*store)?, &name).await?.index;
    if index.versions.is_empty() {
        return Err(unknown(&name).into());
    }
    let current = index.current().map(|version| version.id.clone());
    let view = |version: &Version| StateVersion::of(version, current.as_ref() == Some(&version.id));
    Ok(axum::Json(StateVersions { versions: index.versions.iter().map(view).collect() }).into_response())
}

/// Returns a version of a state, by its serial number or its id.
///
/// If several versions have the same serial number, the newest is returned.
#[utoipa::path(
    get, path = "/tf/{name}/history/{serial}", tag = "terraform", operation_id = "getTerraformStateVersion",
    params(
        ("name" = StateName, Path, description = "Name of the state; encode '/' as %2F"),
        ("serial" = String, Path, description = "Serial number or id of the version"),
    ),
    responses(
        (status = OK, description = "State of that version", body = Object, content_type = "application/json"),
        (status = NOT_FOUND, description = "UNKNOWN_STATE: the version does not exist or is not kept any more", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn get_version(
    State(app): State<App>,
    Path((name, serial)): Path<(String, String)>,
    request: Request,
) -> Reply {
    let (mut parts, _) = request.into_parts();
    Caller::<Worker>::from_request_parts(&mut parts, &app).await?;
    let store = app.leasehold().store();
    let docs = docs(&*store)?;
    let index = StoredIndex::load(docs, &name).await?.index;
    let wanted = |version: &&Version| version.id == serial || version.serial.to_string() == serial;
    let Some(version) = index.versions.iter().find(wanted) else {
        let detail = format!("the state '{name}' has no version {serial}, or it is not kept any more");
        return Err(Problem::new("UNKNOWN_STATE", detail).into());
    };
    Ok(json(chunks::read(docs, &name, version).await?))
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
