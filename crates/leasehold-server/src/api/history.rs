//! What happened to a lock.

use axum::extract::State;
use leasehold::client::EventView;
use leasehold::model::LockName;
use leasehold::store::{Cursor, EventRange, ListEvents};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::lease::LockPath;
use super::locks::page_size;
use crate::access::{Caller, Reader};
use crate::body::Query;
use crate::described::{PageCursor, PageSize};
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(history))
}

/// Which part of the history.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// `next` of the page before.
    #[serde(default)]
    #[param(value_type = Option<PageCursor>)]
    cursor: String,
    /// At most so many, 1 to 1000; 100 if not said.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// A page of history.
#[derive(Serialize, ToSchema)]
struct History {
    /// The newest first.
    events: Vec<EventView>,
    /// Give it as `cursor` for the page before this one in time; there is none after the oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// See what happened to a lock, the newest first, a page at a time.
#[utoipa::path(
    get, path = "/api/v1/locks/{name}/history", tag = "locks", operation_id = "lockHistory",
    params(("name" = LockName, Path, description = "The lock; a '/' is written %2F"), HistoryQuery),
    responses(
        (status = OK, body = History),
    ),
)]
async fn history(
    State(app): State<App>,
    _: Caller<Reader>,
    LockPath(name): LockPath,
    Query(query): Query<HistoryQuery>,
) -> Answer<axum::Json<History>> {
    let span =
        if query.cursor.is_empty() { EventRange::Newest } else { EventRange::Before(Cursor(query.cursor)) };
    let ask = ListEvents { lock: Some(name), span, limit: page_size(query.limit)? };
    let page = app.leasehold().history(&ask).await?;
    Ok(axum::Json(History { events: page.items, next: page.next.map(|next| next.0) }))
}
