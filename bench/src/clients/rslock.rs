//! rslock, a popular lock library for Redis, used as in its documentation.

use std::time::Duration;

use anyhow::{Context, Result};
use rslock::{Lock, LockManager};

use super::Client;

const TTL: Duration = Duration::from_secs(30);

/// Client with its own manager, and so its own connection.
pub(crate) struct Rslock {
    manager: LockManager,
    key: String,
    lock: Option<Lock>,
    token: u64,
}

impl Rslock {
    pub(crate) fn new(url: &str, key: String) -> Self {
        Self { manager: LockManager::new(vec![url]), key, lock: None, token: 0 }
    }
}

impl Client for Rslock {
    async fn acquire(&mut self) -> Result<u64> {
        self.lock = Some(self.manager.lock(self.key.as_bytes(), TTL).await?);
        self.token += 1;
        Ok(self.token)
    }

    async fn release(&mut self) -> Result<()> {
        let lock = self.lock.take().context("released before it was acquired")?;
        self.manager.unlock(&lock).await;
        Ok(())
    }
}
