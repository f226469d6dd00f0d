//! State of the dashboard that all requests share.

use std::sync::Arc;
use std::time::Duration;

use leasehold::store::Capabilities;
use uuid::Uuid;

use super::data::Data;
use super::figures::series::Minute;
use super::live::deadlocks::DeadlockSearch;
use super::live::pollers::Pollers;
use super::live::snapshots::Snapshots;
use super::view::View;

/// State of the dashboard.
pub(crate) struct DashboardState {
    pub(crate) snapshots: Snapshots<View, Data>,
    /// Figures of the charts: recorded once a minute, so they are read less often than the rest.
    pub(crate) figures: Snapshots<(), (Vec<Minute>, Vec<f64>)>,
    pub(crate) deadlocks: Arc<DeadlockSearch>,
    pub(crate) pollers: Pollers<View>,
    /// Key of the CSRF tokens on an open server, whose viewers have no API token.
    pub(crate) csrf_key: String,
}

impl Default for DashboardState {
    fn default() -> Self {
        Self {
            snapshots: Snapshots::default(),
            figures: Snapshots::default(),
            deadlocks: Arc::default(),
            pollers: Pollers::default(),
            csrf_key: Uuid::new_v4().to_string(),
        }
    }
}

/// Interval at which an open page reads the store. Pages on engines that charge for requests, or allow
/// few of them, are updated less often.
pub(crate) fn refresh_interval(engine: &Capabilities) -> Duration {
    match engine.engine {
        "dynamodb" => Duration::from_secs(5),
        "github" => Duration::from_mins(1),
        _ => Duration::from_secs(1),
    }
}
