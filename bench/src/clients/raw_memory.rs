//! A bare mutex and a map: the least that a lock table in memory can cost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::sync::OwnedMutexGuard;

use super::Client;

/// Who holds what, by name.
pub(crate) type Map = Arc<Mutex<Table>>;
/// The same, for clients that want to be served in turn.
pub(crate) type FairMap = Arc<tokio::sync::Mutex<Table>>;

#[derive(Debug, Default)]
pub(crate) struct Table {
    holders: HashMap<String, u64>,
    token: u64,
}

impl Table {
    fn take(&mut self, name: &str) -> u64 {
        self.token += 1;
        self.holders.insert(name.to_owned(), self.token);
        self.token
    }
}

/// Each client has a name of its own: an entry in, an entry out.
pub(crate) struct MapClient {
    pub(crate) map: Map,
    pub(crate) name: String,
}

impl Client for MapClient {
    async fn acquire(&mut self) -> Result<u64> {
        Ok(self.map.lock().unwrap_or_else(PoisonError::into_inner).take(&self.name))
    }

    async fn release(&mut self) -> Result<()> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).holders.remove(&self.name);
        Ok(())
    }
}

/// All clients want the same: tokio's mutex has a fair queue.
pub(crate) struct FairMapClient {
    pub(crate) map: FairMap,
    pub(crate) name: String,
    pub(crate) guard: Option<OwnedMutexGuard<Table>>,
}

impl Client for FairMapClient {
    async fn acquire(&mut self) -> Result<u64> {
        let mut guard = self.map.clone().lock_owned().await;
        let token = guard.take(&self.name);
        self.guard = Some(guard);
        Ok(token)
    }

    async fn release(&mut self) -> Result<()> {
        if let Some(mut guard) = self.guard.take() {
            guard.holders.remove(&self.name);
        }
        Ok(())
    }
}
