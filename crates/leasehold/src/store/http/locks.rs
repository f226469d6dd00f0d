//! Locks: each call is one HTTP exchange.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;

use super::client::HttpClient;
use super::subscriber::Subscriber;
use crate::Result;
use crate::model::{
    Acquire, Event, LeaseId, LockName, LockOp, LockRecord, LockRequest, Outcome, Swept, Timestamp, Ttl,
};
use crate::store::protocol::LockCall;
use crate::store::repeat::Repeat;
use crate::store::{ListEvents, ListLocks, LockStore, Page, Peek, WaiterSubscription};

#[derive(Debug)]
pub(super) struct HttpLocks {
    pub(super) client: Arc<HttpClient>,
    pub(super) subscriber: Arc<Subscriber>,
    /// Whether the server deletes idle locks.
    pub(super) supports_forget: bool,
}

fn path(call: LockCall) -> String {
    format!("locks/{}", call.as_str())
}

#[async_trait]
impl LockStore for HttpLocks {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        self.client.apply(path(LockCall::Apply), name, &without_process(op)).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.client.call(path(LockCall::Get), &(name,), Repeat::Safe).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.client.call(path(LockCall::Peek), &(name, waiter), Repeat::Safe).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.client.call(path(LockCall::List), &(query,), Repeat::Safe).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.client.call(path(LockCall::History), &(query,), Repeat::Safe).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.client.call(path(LockCall::Now), &(), Repeat::Safe).await
    }

    fn changes(&self, _: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.subscriber.subscribe_waiter(*waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.client.call(path(LockCall::Sweep), &(limit,), Repeat::Unsafe).await
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        if !self.supports_forget {
            return Ok(0);
        }
        self.client.call(path(LockCall::Forget), &(idle, limit), Repeat::Unsafe).await
    }
}

/// Removes the process from an acquire: processes of this machine mean nothing to the server.
fn without_process(op: &LockOp) -> Cow<'_, LockOp> {
    match op {
        LockOp::Acquire(Acquire { request, queue, steal_after }) if request.process.is_some() => {
            let request = Arc::new(LockRequest { process: None, ..(**request).clone() });
            Cow::Owned(LockOp::Acquire(Acquire { request, queue: *queue, steal_after: *steal_after }))
        }
        op => Cow::Borrowed(op),
    }
}
