//! Mutex and map: the minimum cost of a lock table in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::sync::OwnedMutexGuard;

use super::Client;

/// Holders by lock name.
pub(crate) type Map = Arc<Mutex<Table>>;
/// The same with a fair mutex.
pub(crate) type FairMap = Arc<tokio::sync::Mutex<Table>>;

#[derive(Debug, Default)]
pub(crate) struct Table {
    holders: HashMap<String, u64>,
    token: u64,
}

impl Table {
    fn acquire(&mut self, name: &str) -> u64 {
        self.token += 1;
        self.holders.insert(name.to_owned(), self.token);
        self.token
    }
}

/// Client with its own lock: inserts and removes an entry.
pub(crate) struct MapClient {
    pub(crate) map: Map,
    pub(crate) name: String,
}

impl Client for MapClient {
    async fn acquire(&mut self) -> Result<u64> {
        Ok(self.map.lock().unwrap_or_else(PoisonError::into_inner).acquire(&self.name))
    }

    async fn release(&mut self) -> Result<()> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).holders.remove(&self.name);
        Ok(())
    }
}

/// Client of a lock that all clients use: tokio's mutex has a fair queue.
pub(crate) struct FairMapClient {
    pub(crate) map: FairMap,
    pub(crate) name: String,
    pub(crate) guard: Option<OwnedMutexGuard<Table>>,
}

impl Client for FairMapClient {
    async fn acquire(&mut self) -> Result<u64> {
        let mut guard = self.map.clone().lock_owned().await;
        let token = guard.acquire(&self.name);
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
