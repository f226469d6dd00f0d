//! All routes about tasks.

use utoipa_axum::router::OpenApiRouter;

use super::{enqueue, get, heartbeat, lease, maintenance, queues, schedules, settle, update, workers};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(enqueue::routes())
        .merge(lease::routes())
        .merge(heartbeat::routes())
        .merge(settle::routes())
        .merge(get::routes())
        .merge(update::routes())
        .merge(queues::routes())
        .merge(workers::routes())
        .merge(schedules::routes())
        .merge(maintenance::routes())
}
