//! History of a lock.

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
use crate::problem::ApiResult;
use crate::roles::routes;
use crate::schemas::{PageCursor, PageSize};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(history))
}

/// Query for a page of history.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// `next` of the previous page.
    #[serde(default)]
    #[param(value_type = Option<PageCursor>)]
    cursor: String,
    /// Maximum number of events, 1 to 1000. Default: 100.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// Page of history.
#[derive(Serialize, ToSchema)]
struct HistoryPage {
    /// Events, newest first.
    events: Vec<EventView>,
    /// Cursor of the next page, with older events; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Lists the events of a lock, newest first.
#[utoipa::path(
    get, path = "/api/v1/locks/{name}/history", tag = "locks", operation_id = "lockHistory",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F"), HistoryQuery),
    responses(
        (status = OK, body = HistoryPage),
    ),
)]
async fn history(
    State(app): State<App>,
    _: Caller<Reader>,
    LockPath(name): LockPath,
    Query(query): Query<HistoryQuery>,
) -> ApiResult<axum::Json<HistoryPage>> {
    let span =
        if query.cursor.is_empty() { EventRange::Newest } else { EventRange::Before(Cursor(query.cursor)) };
    let list = ListEvents { lock: Some(name), span, limit: page_size(query.limit)? };
    let page = app.leasehold().history(&list).await?;
    Ok(axum::Json(HistoryPage { events: page.items, next: page.next.map(|next| next.0) }))
}
