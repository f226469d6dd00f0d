//! All routes about tasks.

use utoipa_axum::router::OpenApiRouter;

use super::{enqueue, get, lease, queues, schedules, settle, workers};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(enqueue::routes())
        .merge(lease::routes())
        .merge(lease::heartbeat_routes())
        .merge(settle::routes())
        .merge(get::routes())
        .merge(get::update_routes())
        .merge(queues::routes())
        .merge(workers::routes())
        .merge(schedules::routes())
        .merge(queues::maintenance_routes())
}
