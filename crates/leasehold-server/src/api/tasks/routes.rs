//! All routes about tasks.

use utoipa_axum::router::OpenApiRouter;

use super::{add, beat, change, lease, look, queues, schedules, settle, settle_many, tidy, workers};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(add::routes())
        .merge(lease::routes())
        .merge(beat::routes())
        .merge(settle::routes())
        .merge(settle_many::routes())
        .merge(look::routes())
        .merge(change::routes())
        .merge(queues::routes())
        .merge(workers::routes())
        .merge(schedules::routes())
        .merge(tidy::routes())
}
