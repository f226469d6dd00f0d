//! The callers of one process stand in line for an issue instead of competing with each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::model::LockName;

/// Lines of callers, one for each lock.
#[derive(Debug, Default)]
pub(super) struct Lanes(Mutex<HashMap<LockName, Arc<tokio::sync::Mutex<()>>>>);

impl Lanes {
    /// Waits for one's turn, and has it until the guard is dropped.
    pub(super) async fn enter(&self, name: &LockName) -> tokio::sync::OwnedMutexGuard<()> {
        let lane = {
            let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            lanes.entry(name.clone()).or_default().clone()
        };
        lane.lock_owned().await
    }
}
