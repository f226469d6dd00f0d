//! Order among the callers of one process: they queue for an issue instead of competing for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::model::LockName;

/// Queues of callers, one per lock.
#[derive(Debug, Default)]
pub(super) struct Lanes(Mutex<HashMap<LockName, Arc<tokio::sync::Mutex<()>>>>);

impl Lanes {
    /// Waits for the caller's turn, which lasts until the guard is dropped.
    pub(super) async fn enter(&self, name: &LockName) -> tokio::sync::OwnedMutexGuard<()> {
        let lane = {
            let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            lanes.entry(name.clone()).or_default().clone()
        };
        lane.lock_owned().await
    }
}
