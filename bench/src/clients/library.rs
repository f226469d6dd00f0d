//! leasehold on two layers: the store and the client.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leasehold::model::{
    Acquire, Holder, LeaseId, LockName, LockOp, LockRequest, Metadata, Mode, Outcome, Priority, Release,
    Slots, Token, Ttl,
};
use leasehold::store::{Hosts, Store, this_process};
use leasehold::{Guard, Leasehold};

use super::Client;
use crate::sandbox::Keys;

/// Wait timeout, longer than any queue here.
const WAIT: Duration = Duration::from_mins(1);

/// Client of the store layer. The request is created once, because creating it is part of the client layer.
pub(crate) struct StoreClient {
    store: Arc<dyn Store>,
    name: LockName,
    lease_id: LeaseId,
    acquire: LockOp,
    token: Token,
}

impl StoreClient {
    pub(crate) fn new(store: Arc<dyn Store>, name: LockName, number: u32) -> Result<Self> {
        let lease_id: LeaseId = format!("00000000-0000-7000-8000-{number:012}").parse()?;
        let local = store.capabilities().hosts == Hosts::OneMachine;
        let request = LockRequest {
            lease_id,
            holder: Holder::new(format!("bench-{number}"))?,
            mode: Mode::default(),
            slots: Slots::default(),
            priority: Priority::default(),
            ttl: Ttl::from_secs(30),
            metadata: Metadata::default(),
            process: if local { this_process() } else { None },
        };
        let acquire = LockOp::Acquire(Acquire { request: Arc::new(request), queue: None, steal_after: None });
        Ok(Self { store, name, lease_id, acquire, token: Token::default() })
    }
}

impl Client for StoreClient {
    async fn acquire(&mut self) -> Result<u64> {
        match self.store.locks().apply(&self.name, &self.acquire).await? {
            Outcome::Granted(lease) => self.token = lease.token,
            other => bail!("an uncontended lock could not be acquired: {other:?}"),
        }
        Ok(self.token.get())
    }

    async fn release(&mut self) -> Result<()> {
        let release = Release { lease_id: self.lease_id, token: self.token, at_least: None };
        match self.store.locks().apply(&self.name, &LockOp::Release(release)).await? {
            Outcome::Released(_) => Ok(()),
            other => bail!("an uncontended lock could not be released: {other:?}"),
        }
    }
}

/// Client of the whole library, as a caller uses it.
pub(crate) struct LibraryClient {
    pub(crate) leasehold: Leasehold,
    pub(crate) name: LockName,
    pub(crate) keys: Keys,
    pub(crate) guard: Option<Guard>,
}

impl Client for LibraryClient {
    async fn acquire(&mut self) -> Result<u64> {
        let lock = self.leasehold.lock(&self.name);
        let lock = if self.keys == Keys::One { lock.wait(WAIT) } else { lock };
        let guard = lock.acquire().await?;
        let token = guard.token().get();
        self.guard = Some(guard);
        Ok(token)
    }

    async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().context("released before it was acquired")?;
        Ok(guard.release().await?)
    }
}
